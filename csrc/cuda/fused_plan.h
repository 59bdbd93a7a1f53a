// From an all-reduce with a norm behind it to a launch. Depends on sizes, type, algorithm and grid cap alone.
#pragma once

#include "cuda/launch_plan.h"
#include "cuda/norm_args.h"

namespace llcoll {

struct FusedLaunch {
  FusedKernel kernel = nullptr;  // nullptr: no fused kernel for this call
  Protocol protocol = kLl;
  uint32_t num_channels = 0;
  uint32_t num_threads = 0;
  Plan cut{};
  Message message{};
  NormArgs norm{};
};

FusedLaunch plan_fused_launch(const CollectiveCall& call, const NormCall& norm, int num_ranks, const CudaLayout& layout,
                              uint32_t max_channels);

}  // namespace llcoll
