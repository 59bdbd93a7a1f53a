// Parameters and tables of the kernels of one exchange: reduce-scatter, all-gather, all-to-all. Host and device.
#pragma once

#include "cuda/kernel_args.h"
#include "llcoll/parts.h"

namespace llcoll {

struct ExchangeArgs {
  Scratch scratch;
  Parts input;
  Parts output;
  Cut cut;
  DeviceWait wait;
  ReduceOp op;
  LaunchOrder order;
};
static_assert(sizeof(ExchangeArgs) <= 4096, "the limit of kernel parameters");

using ExchangeKernel = void (*)(ExchangeArgs);

// One file each; nullptr where the table has no row. Copies move bytes: one kernel serves all types.
ExchangeKernel find_all_gather(Algorithm algorithm);
ExchangeKernel find_all_to_all(Algorithm algorithm);
ExchangeKernel find_reduce_scatter_ll(DType dtype, ReduceOp op);
ExchangeKernel find_reduce_scatter_sentinel(DType dtype, ReduceOp op);
ExchangeKernel find_reduce_scatter_flag(DType dtype, ReduceOp op);

}  // namespace llcoll
