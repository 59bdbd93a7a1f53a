// What init finds out about the links between the ranks' GPUs.
#pragma once

#include <cuda_runtime.h>

#include "communicator.h"
#include "cpu/rendezvous.h"
#include "cuda/cuda_communicator.h"

namespace llcoll {

struct LinkTest {
  const CudaMemory& memory;
  const Options& options;
  uint64_t test_offset;  // of kMaxRanks + 1 packets in each buffer, cleared
  cudaStream_t stream;
};

// Both are collective, and succeed or throw the same text on every rank.

// True where multicast may be used: every rank has an address and wants it (LLCOLL_MULTICAST=0 does without), and 16
// bytes arrive whole by it, which no manual promises. Leaves the test's packets cleared.
bool test_multicast(const LinkTest& test, bool is_wanted, const AllGather& all_gather);

// True where 16-byte packets arrived torn at THIS rank. Throws where some did not arrive at all.
bool test_stores(const LinkTest& test, const AllGather& all_gather);

}  // namespace llcoll
