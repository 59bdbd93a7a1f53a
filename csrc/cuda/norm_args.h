// Parameters of the kernels that end in a norm. Host and device.
#pragma once

#include "cuda/kernel_args.h"
#include "norm_call.h"

namespace llcoll {

// Tensors of whole rows; `rows` is a message whose output is the rounded residual.
struct NormArgs {
  Message residual;  // residual -> residual_out
  Message weight;    // one row
  Message output;    // in the rows' type; unused for fp8
  uint8_t* fp8;
  const float* scale;
  float* scales;
  uint32_t num_rows;
  uint32_t units_per_row;
  uint32_t num_columns;
  float eps;
  float weight_bias;
  NormOutput kind;
};

struct FusedArgs {
  KernelArgs base;
  NormArgs norm;
};
static_assert(sizeof(FusedArgs) <= 4096, "the limit of kernel parameters");

using FusedKernel = void (*)(FusedArgs);
struct FusedKey {
  DType dtype;
  int num_ranks;
  int items;  // units of a row that one thread holds
  bool once;  // one row, in one epoch, for each CTA
};
// nullptr where the table has no row.
FusedKernel find_fused_one_shot_ll(const FusedKey& key);
FusedKernel find_fused_one_shot_sentinel(const FusedKey& key);
FusedKernel find_fused_two_shot_sentinel(const FusedKey& key);

}  // namespace llcoll
