// From a call of one exchange to a launch. Depends on sizes, type and grid cap alone.
#pragma once

#include "communicator.h"
#include "cuda/exchange_kernels.h"
#include "cuda/launch_plan.h"

namespace llcoll {

struct ExchangeLaunch {
  ExchangeKernel kernel;  // nullptr: no such row
  Protocol protocol;
  uint32_t num_channels;
  uint32_t num_threads;
  bool empty;         // on all ranks: nothing is launched
  ExchangeArgs args;  // all but `scratch` and `wait`, which the communicator has
};
void plan_exchange_launch(const CollectiveCall& call, int rank, int num_ranks, const CudaLayout& layout,
                          uint32_t max_channels, ExchangeLaunch& launch);

}  // namespace llcoll
