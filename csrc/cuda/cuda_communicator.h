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

// Measurements on a communicator that make_cuda_communicator made; synchronous, collective over those that take part.
// us per all-reduce of the first `bytes` of `buffer` (bfloat16, sum, in place), `iterations` of them inside one launch.
double time_in_kernel(Communicator& communicator, void* buffer, size_t bytes, Algorithm algorithm, uint32_t iterations);
// Half of a round trip of a packet between this rank and `peer`, ns: a store into the other's memory until its poll
// sees it. Both ranks call it, with the same number of trips.
double ping_pong_ns(Communicator& communicator, int peer, uint32_t trips);

}  // namespace llcoll
