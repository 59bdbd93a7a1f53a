// A one-shot all-reduce of your own, for CPU and GPU: every rank sends its whole message to every rank, and each adds
// what it got. The same bits on every rank, since all add in rank order.
#pragma once

#include "llcoll/ll_group.h"

struct Vec4 {
  float x[4];
};
// A Vec4 is made of floats: in sentinel mode a word that equals the empty pattern becomes another NaN.
template <>
struct llcoll::ElementOf<Vec4> : llcoll::ElementOf<float> {};

// One block's share: `count` elements at `data`, in place. All members of the block call it.
template <class Buffer>
LLC_FN void one_shot_all_reduce(Buffer& buffer, Vec4* data, uint32_t count) {
  constexpr bool kReset = Buffer::kMode == llcoll::LlMode::kSentinel;
  // A slot per source and element: what fits is one epoch's work.
  const uint32_t stride = buffer.template capacity<Vec4>() / buffer.num_ranks();
  for (uint32_t first = 0; first < count; first += stride) {
    const uint32_t n = count - first < stride ? count - first : stride;
    buffer.group().each(n, [&](uint32_t i) { buffer.bcast(buffer.rank() * stride + i, data[first + i]); });
    buffer.group().each(n, [&](uint32_t i) {
      data[first + i] = buffer.template recv_reduce<8, Vec4, kReset>(
          i, buffer.num_ranks(), stride, [](Vec4 v) { return v; },
          [](Vec4 a, Vec4 b) {
            return Vec4{{a.x[0] + b.x[0], a.x[1] + b.x[1], a.x[2] + b.x[2], a.x[3] + b.x[3]}};
          },
          0);
    });
    buffer.advance_epoch(first + n == count);  // the other part's turn
  }
}
