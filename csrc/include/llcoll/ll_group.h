// Forms of LLBuffer for a whole group (CTA, warp or CPU thread), with fewer rules: one call is one or more whole epochs
// in which every rank hears from every other, resets included. Chunks, slots and stragglers are taken care of.
//
// All members call with equal arguments, all ranks with equal counts, T and order of calls. `read` and `write` are
// called by one member per element, and `write` of an element by the member that read it (all_to_all excepted: there an
// output must not overlap an input). `last`: no call on this buffer follows in this kernel. Two parts
// (round_robin = 2) are enough. False: a peer did not come; outputs hold NaN or 0 from there on.
#pragma once

#include "llcoll/ll_buffer.h"

namespace llcoll {
inline namespace LLC_ISA {

// chunk(first, count, stride, last): one epoch over the elements [first, first + count); slot = source * stride + i.
template <class T, class Buffer, class Chunk>
LLC_FN bool for_each_chunk(Buffer& buffer, uint32_t count, bool last, Chunk&& chunk) {
  const uint32_t stride = buffer.template capacity<T>() / static_cast<uint32_t>(buffer.num_ranks());
  for (uint32_t first = 0; first < count; first += stride) {
    const uint32_t left = count - first;
    chunk(first, left < stride ? left : stride, stride);
    buffer.advance_epoch(last && left <= stride);
  }
  return !buffer.failed();
}

// read(i) -> T for i in [0, count); write(i, acc) gets reduce over all ranks of to_acc(what rank r read at i), in rank
// order. `unroll`: ranks that are polled together.
template <int unroll, class T, class Buffer, class Read, class ToAcc, class Reduce, class Write>
LLC_FN bool ll_all_reduce(Buffer& buffer, uint32_t count, Read&& read, ToAcc&& to_acc, Reduce&& reduce, Write&& write,
                          bool last = false) {
  constexpr bool kReset = Buffer::kMode == LlMode::kSentinel;
  return for_each_chunk<T>(buffer, count, last, [&](uint32_t first, uint32_t n, uint32_t stride) {
    const uint32_t own = static_cast<uint32_t>(buffer.rank()) * stride;
    buffer.group().each(n, [&](uint32_t i) { buffer.template bcast<unroll, T>(own + i, read(first + i)); });
    buffer.group().each(n, [&](uint32_t i) {
      write(first + i,
            buffer.template recv_reduce<unroll, T, kReset>(i, buffer.num_ranks(), stride, to_acc, reduce, 0));
    });
  });
}

// write(source, i, value) for what rank `source` read at i.
template <int unroll, class T, class Buffer, class Read, class Write>
LLC_FN bool ll_all_gather(Buffer& buffer, uint32_t count, Read&& read, Write&& write, bool last = false) {
  constexpr bool kReset = Buffer::kMode == LlMode::kSentinel;
  return for_each_chunk<T>(buffer, count, last, [&](uint32_t first, uint32_t n, uint32_t stride) {
    const uint32_t own = static_cast<uint32_t>(buffer.rank()) * stride;
    buffer.group().each(n, [&](uint32_t i) { buffer.template bcast<unroll, T>(own + i, read(first + i)); });
    buffer.group().each(n, [&](uint32_t i) {
      for (int source = 0; source < buffer.num_ranks(); source += unroll) {
        T data[unroll];
        buffer.template recv_unrolled<1, unroll, T, kReset>(i + source * stride, buffer.num_ranks() - source, stride,
                                                            data, source);
        LLC_UNROLL
        for (int k = 0; k < unroll; ++k) {
          if (source + k < buffer.num_ranks()) write(source + k, first + i, data[k]);
        }
      }
    });
  });
}

// read(peer, i) goes to `peer`, whose write(source, i, value) gets it.
template <class T, class Buffer, class Read, class Write>
LLC_FN bool ll_all_to_all(Buffer& buffer, uint32_t count, Read&& read, Write&& write, bool last = false) {
  constexpr bool kReset = Buffer::kMode == LlMode::kSentinel;
  return for_each_chunk<T>(buffer, count, last, [&](uint32_t first, uint32_t n, uint32_t stride) {
    const uint32_t own = static_cast<uint32_t>(buffer.rank()) * stride;
    for (int peer = 0; peer < buffer.num_ranks(); ++peer) {
      buffer.group().each(n, [&](uint32_t i) { buffer.template send<T>(peer, own + i, read(peer, first + i)); });
    }
    for (int source = 0; source < buffer.num_ranks(); ++source) {
      buffer.group().each(n, [&](uint32_t i) {
        write(source, first + i, buffer.template recv<T, kReset>(source * stride + i, source));
      });
    }
  });
}

}  // namespace LLC_ISA
}  // namespace llcoll
