// Init-time test of the stores between each pair of ranks.
#pragma once

#include <cuda_runtime.h>

#include "llcoll/layout.h"

namespace llcoll {

struct SelfTestArgs {
  Packet* slots[kMaxRanks];  // [r]: rank r's test slots, one per source
  uint32_t* result;          // 0: all arrived whole; 1: torn; 2: did not arrive within the limit
  int rank;
  int num_ranks;
  uint64_t timeout_ns;
  Packet* multicast;  // all ranks' slots at once: the packets go there; null: to each peer
};

// One thread per peer sends kNumSelfTestPackets packets whose payload equals their flag, while it polls the slot of
// the same peer until the last one came: a torn packet shows as payload != flag.
inline constexpr uint32_t kNumSelfTestPackets = 20000;
cudaError_t launch_self_test(const SelfTestArgs& args, cudaStream_t stream);

}  // namespace llcoll
