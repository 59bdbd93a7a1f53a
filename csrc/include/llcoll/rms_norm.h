// Root-mean-square norm of a row, in one order whatever the batch, the algorithm and the processor:
//
//   r[i]    = T(s[i] + residual[i])                     what residual_out gets; s is the sum over ranks, already a T
//   total   = the balanced binary tree over r[i] * r[i], neighbours first, the row padded with zeros to a power of two
//   scale   = 1 / sqrt(total / n + eps)
//   y[i]    = (r[i] * scale) * (weight[i] + weight_bias)
//
// all in float32, each step rounded to nearest, without contraction; then one rounding, to T or to float8_e4m3fn. The
// tree is one that a CTA can walk (units in a thread, threads in a warp, warps) and a vector too, and its shape knows
// neither how many threads nor how many bytes a unit has: that is what makes results batch-invariant.
#pragma once

#include "llcoll/element.h"

namespace llcoll {
inline namespace LLC_ISA {

LLC_FN float inverse_root(float total, uint32_t num_columns, float eps) {
#if defined(__CUDACC__)
  return __fdiv_rn(1.0f, __fsqrt_rn(__fdiv_rn(total, static_cast<float>(num_columns)) + eps));
#else
  return 1.0f / __builtin_sqrtf(total / static_cast<float>(num_columns) + eps);
#endif
}

// The largest float8_e4m3fn, and the smallest scale of a row: below it a row of tiny values would divide by almost 0.
inline constexpr float kFp8Max = 448.0f;
inline constexpr float kMinRowScale = 1.0f / (448.0f * 512.0f);

LLC_FN float row_scale(float largest) {
#if defined(__CUDACC__)
  const float scale = __fdiv_rn(largest, kFp8Max);
#else
  const float scale = largest / kFp8Max;
#endif
  return scale < kMinRowScale ? kMinRowScale : scale;
}

// Saturating, as quantisers do; NaN stays NaN.
LLC_FN uint32_t fp8_of(float y, float scale) {
#if defined(__CUDACC__)
  float q = __fdiv_rn(y, scale);
#else
  float q = y / scale;
#endif
  q = q > kFp8Max ? kFp8Max : q;
  q = q < -kFp8Max ? -kFp8Max : q;
  return Float8E4M3::pack<uint32_t>(q, 0);
}

// The tree inside one unit of a lane-less processor: elements in pairs, pairs in fours, and so on.
template <class Type, class Unit>
LLC_FN float sum_of_squares(const Unit& unit) {
  constexpr int kElements = Unit::kWords * Type::kPerWord;
  float part[kElements];
  LLC_UNROLL
  for (int w = 0; w < Unit::kWords; ++w) {
    LLC_UNROLL
    for (int k = 0; k < Type::kPerWord; ++k) {
      const float r = Type::template unpack<uint32_t>(unit.words[w], k);
      part[w * Type::kPerWord + k] = r * r;
    }
  }
  LLC_UNROLL
  for (int n = kElements / 2; n > 0; n /= 2) {
    LLC_UNROLL
    for (int i = 0; i < kElements / 2; ++i) {
      if (i < n) part[i] = part[2 * i] + part[2 * i + 1];
    }
  }
  return part[0];
}

template <class Type, class Unit>
LLC_FN Unit add_units(const Unit& a, const Unit& b) {
  Unit sum{};
  LLC_UNROLL
  for (int w = 0; w < Unit::kWords; ++w) {
    LLC_UNROLL
    for (int k = 0; k < Type::kPerWord; ++k) {
      sum.words[w] |= Type::template pack<uint32_t>(
          Type::template unpack<uint32_t>(a.words[w], k) + Type::template unpack<uint32_t>(b.words[w], k), k);
    }
  }
  return sum;
}

}  // namespace LLC_ISA
}  // namespace llcoll
