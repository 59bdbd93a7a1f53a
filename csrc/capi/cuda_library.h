// What libllcoll.so asks of libllcoll_cuda.so, which it loads at the first communicator on a GPU: so that programs on
// machines without one need no CUDA, and the device code is in the package once.
#pragma once

#include <cstdint>
#include <memory>

#include "communicator.h"
#include "cpu/rendezvous.h"

namespace llcoll::capi {

// Both libraries come from one build: a number that differs means a broken installation.
inline constexpr uint32_t kCudaLibraryVersion = 1;
inline constexpr const char* kCudaLibrarySymbol = "llcoll_cuda_library";

struct CudaLibrary {
  uint32_t version;
  // Collective. Scratch of its own, shared by POSIX descriptors; every later call runs on options.device_index,
  // whatever the calling thread's device is.
  std::shared_ptr<Communicator> (*make)(const Options& options, const AllGather& all_gather);
};

// Throws LlcollError where the library is not there or cannot be loaded.
const CudaLibrary& cuda_library();

}  // namespace llcoll::capi
