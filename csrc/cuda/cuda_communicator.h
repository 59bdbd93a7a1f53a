// The CUDA backend: one communicator over symmetric memory that the caller allocated and exchanged.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "communicator.h"
#include "cpu/rendezvous.h"

namespace llcoll {

struct CudaMemory {
  int device = 0;
  std::vector<uint64_t> buffers;  // [r]: rank r's buffer, mapped in this process; 256-byte aligned
  uint64_t bytes = 0;             // size of each, the same on every rank
  uint64_t multicast = 0;         // address that stores to all ranks' buffers, 0: none
};

// Bytes that each rank's buffer must have for these options.
uint64_t cuda_buffer_bytes(const Options& options);

// Collective over the group of `all_gather`: agrees on the grid cap, clears this rank's buffer, tests packets between
// all pairs and passes a barrier. Succeeds or throws the same text on every rank. The buffers must outlive it.
std::shared_ptr<Communicator> make_cuda_communicator(const Options& options, const CudaMemory& memory,
                                                     const AllGather& all_gather);

}  // namespace llcoll
