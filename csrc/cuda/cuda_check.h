// CUDA errors as exceptions, and switches from the environment.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdlib>

#include "check.h"
#include "cuda/kernel_args.h"

namespace llcoll {

inline void check_cuda(cudaError_t error, const char* what) {
  if (error != cudaSuccess) [[unlikely]] {
    cudaGetLastError();  // not sticky ones: the next call must not report it again
    fail_with(what, ": ", cudaGetErrorString(error), " (", cudaGetErrorName(error), ")");
  }
}

// Experiments: LLCOLL_PDL=0 launches without programmatic dependence, LLCOLL_STREAMS_MAY_END=0 spares a call of the C
// interface the event that a stream's destruction makes necessary, LLCOLL_MAX_CHANNELS caps every grid (the smallest
// over the ranks' own caps counts, so all ranks must be given the same).
inline uint32_t number_from_environment(const char* name, uint32_t otherwise) {
  const char* text = std::getenv(name);
  if (text == nullptr) return otherwise;
  const int value = std::atoi(text);
  return value < 0 ? otherwise : std::min<uint32_t>(static_cast<uint32_t>(value), kMaxChannels);
}

}  // namespace llcoll
