// The end of a row by one CTA: its sum of squares along the tree of llcoll/rms_norm.h, the norm, the output.
// Unit u of the row is item u / group.size of thread u % group.size, where group.size is a power of two from 32 on: so
// the tree runs inside units, then over the lanes of a warp, then over (item, warp), all of them aligned subtrees.
#pragma once

#include "cuda/norm_args.h"
#include "llcoll/device_memory.cuh"
#include "llcoll/group.h"
#include "llcoll/reduce.h"
#include "llcoll/rms_norm.h"

namespace llcoll {

inline constexpr int kMaxItems = 4;
inline constexpr int kMaxWarps = kMaxThreads / 32;

// Neighbours first; every lane ends with the same bits, since a sum of two does not depend on their order.
LLC_FN float warp_tree_sum(float value) {
  LLC_UNROLL
  for (int distance = 1; distance < 32; distance *= 2) value += __shfl_xor_sync(0xFFFFFFFFu, value, distance);
  return value;
}
LLC_FN float warp_max(float value) {
  LLC_UNROLL
  for (int distance = 1; distance < 32; distance *= 2) {
    value = fmaxf(value, __shfl_xor_sync(0xFFFFFFFFu, value, distance));
  }
  return value;
}

template <int items>
class RowBoard {
 public:
  // Two boards in turn: a thread that writes the one of the row after next has passed the barrier of the next row,
  // which every reader of this row reached behind its reads.
  template <class Group>
  LLC_FN float sum(const Group& group, const float (&squares)[items]) {
    float* board = next_board();
    const uint32_t num_warps = group.size / 32;
    const uint32_t lane = group.rank % 32;
    float last = 0;
    LLC_UNROLL
    for (int k = 0; k < items; ++k) {
      last = warp_tree_sum(squares[k]);
      if (lane == 0) board[k * num_warps + group.rank / 32] = last;
    }
    if (items == 1 && num_warps == 1) return last;
    group.sync();
    const uint32_t count = items * num_warps;  // a power of two, at most 64
    if (count <= 32) return warp_tree_sum(lane < count ? board[lane] : 0.0f);
    return warp_tree_sum(board[2 * lane] + board[2 * lane + 1]);
  }

  template <class Group>
  LLC_FN float max(const Group& group, float value) {
    value = warp_max(value);
    const uint32_t num_warps = group.size / 32;
    if (num_warps == 1) return value;
    float* board = next_board();
    if (group.rank % 32 == 0) board[group.rank / 32] = value;
    group.sync();
    return warp_max(group.rank % 32 < num_warps ? board[group.rank % 32] : 0.0f);
  }

 private:
  LLC_FN float* next_board() {
    __shared__ float boards[2][items * kMaxWarps];
    turn_ ^= 1;
    return boards[turn_];
  }
  uint32_t turn_ = 0;
};

// Rounded fp8 elements of one unit, side by side.
template <class Unit, int num_elements>
LLC_FN void store_fp8(uint8_t* at, const float (&y)[num_elements], float scale) {
  static_assert(num_elements == 2 || num_elements % 4 == 0);
  if constexpr (num_elements == 2) {
    *reinterpret_cast<uint16_t*>(at) = static_cast<uint16_t>(fp8_of(y[0], scale) | fp8_of(y[1], scale) << 8);
  } else {
    LLC_UNROLL
    for (int w = 0; w < num_elements / 4; ++w) {
      uint32_t word = 0;
      LLC_UNROLL
      for (int b = 0; b < 4; ++b) word |= fp8_of(y[4 * w + b], scale) << (8 * b);
      reinterpret_cast<uint32_t*>(at)[w] = word;
    }
  }
}

template <class Type, class Unit>
LLC_FN void norm_unit(const Unit& r, const Unit& weight, float scale, float weight_bias,
                      float (&y)[Unit::kWords * Type::kPerWord]) {
  LLC_UNROLL
  for (int w = 0; w < Unit::kWords; ++w) {
    LLC_UNROLL
    for (int k = 0; k < Type::kPerWord; ++k) {
      y[w * Type::kPerWord + k] = (Type::template unpack<uint32_t>(r.words[w], k) * scale) *
                                  (Type::template unpack<uint32_t>(weight.words[w], k) + weight_bias);
    }
  }
}

// `rows[k]`: what this thread holds of the row, zeros past its end. All threads of the CTA call.
template <class Type, class Unit, int items, class Group>
LLC_FN void finish_row(const DeviceMemory& mem, const Group& group, const NormArgs& norm, uint32_t row,
                       const Unit (&rows)[items], RowBoard<items>& board) {
  constexpr int kElements = Unit::kWords * Type::kPerWord;
  Unit weight[items]{};
  float squares[items];
  LLC_UNROLL
  for (int k = 0; k < items; ++k) {
    const uint32_t u = k * group.size + group.rank;
    if (u < norm.units_per_row) weight[k] = norm.weight.template read<Unit>(mem, u);  // travels beside the sums
    squares[k] = sum_of_squares<Type>(rows[k]);
  }
  const float scale = inverse_root(board.sum(group, squares), norm.num_columns, norm.eps);
  float divisor = 1;
  if (norm.kind == NormOutput::kFp8) divisor = *norm.scale;
  if (norm.kind == NormOutput::kFp8PerRow) {
    float largest = 0;
    LLC_UNROLL
    for (int k = 0; k < items; ++k) {
      float y[kElements];
      norm_unit<Type>(rows[k], weight[k], scale, norm.weight_bias, y);
      LLC_UNROLL
      for (int e = 0; e < kElements; ++e) {
        if (k * group.size + group.rank < norm.units_per_row) largest = fmaxf(largest, fabsf(y[e]));
      }
    }
    divisor = row_scale(board.max(group, largest));
    if (group.rank == 0) norm.scales[row] = divisor;
  }
  LLC_UNROLL
  for (int k = 0; k < items; ++k) {
    const uint32_t u = k * group.size + group.rank;
    if (u >= norm.units_per_row) continue;
    float y[kElements];
    norm_unit<Type>(rows[k], weight[k], scale, norm.weight_bias, y);
    const uint32_t at = row * norm.units_per_row + u;
    if (norm.kind == NormOutput::kSame) {
      Unit out{};
      LLC_UNROLL
      for (int e = 0; e < kElements; ++e) {
        out.words[e / Type::kPerWord] |= Type::template pack<uint32_t>(y[e], e % Type::kPerWord);
      }
      norm.output.write(mem, at, out);
    } else {
      store_fp8<Unit>(norm.fp8 + uint64_t{at} * kElements, y, divisor);
    }
  }
}

// What a failed call leaves: NaN in every output.
template <class Type, class Unit>
LLC_FN void poison_unit(const DeviceMemory& mem, const NormArgs& norm, uint32_t at) {
  constexpr int kElements = Unit::kWords * Type::kPerWord;
  if (at >= norm.num_rows * norm.units_per_row) return;
  norm.residual.write(mem, at, poison<Type, Unit>());
  if (norm.kind == NormOutput::kSame) {
    norm.output.write(mem, at, poison<Type, Unit>());
    return;
  }
  for (int e = 0; e < kElements; ++e) norm.fp8[uint64_t{at} * kElements + e] = 0x7F;
  if (norm.kind == NormOutput::kFp8PerRow) norm.scales[at / norm.units_per_row] = __uint_as_float(0x7FC00000u);
}

}  // namespace llcoll
