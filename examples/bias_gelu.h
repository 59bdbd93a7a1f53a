// All-reduce, bias and GELU in one kernel: what a tensor-parallel layer does after its matrix product. The sums never
// go to memory in between. With the group forms there is no epoch, reset or slot to think of.
#pragma once

#include <cmath>

#include "one_shot_all_reduce.h"

// The tanh form: torch.nn.functional.gelu(x, approximate="tanh").
LLC_FN float gelu(float x) { return 0.5f * x * (1.0f + tanhf(0.7978845608f * (x + 0.044715f * x * x * x))); }

// `first`: where this block's share begins, in elements of the whole message; `width`: the bias's length, in elements.
template <class Buffer>
LLC_FN void all_reduce_bias_gelu(Buffer& buffer, Vec4* data, const Vec4* bias, uint32_t first, uint32_t count,
                                 uint32_t width) {
  llcoll::ll_all_reduce<8, Vec4>(
      buffer, count, [&](uint32_t i) { return data[i]; }, [](Vec4 v) { return v; },
      [](Vec4 a, Vec4 b) {
        return Vec4{{a.x[0] + b.x[0], a.x[1] + b.x[1], a.x[2] + b.x[2], a.x[3] + b.x[3]}};
      },
      [&](uint32_t i, Vec4 sum) {
        const Vec4 b = bias[(first + i) % width];
        for (int k = 0; k < 4; ++k) sum.x[k] = gelu(sum.x[k] + b.x[k]);
        data[i] = sum;
      },
      true);
}
