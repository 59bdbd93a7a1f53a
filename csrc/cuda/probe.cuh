// What a GPU's memory can do, and what an all-reduce costs inside one launch: kernels for measurements only.
#pragma once

#include <cuda_runtime.h>

#include "cuda/kernel_args.h"
#include "select.h"

namespace llcoll {

// Nanoseconds of one step, from the device's clock.
struct MemoryTimes {
  double dependent_load_ns;  // 16-byte relaxed loads, each address from the load before: an L2 round trip
  double fenced_store_ns;    // store, then fence.acq_rel.sys: the round trip as the paper measures it
  double store_ns;           // stores alone: issue, not arrival
};
// Synchronous, on `stream`. Throws LlcollError.
MemoryTimes probe_memory(cudaStream_t stream);

// One side of a ping-pong of packets: `trips` round trips with flags above `base`. The side that does not start waits
// first. *ns is the whole time, 0 where the peer did not answer within `timeout_ns`. Relaxed 16-byte accesses on both
// sides: the packet carries its own arrival, as in LL.
struct PingPongArgs {
  Packet* own_slot;   // the peer writes it
  Packet* peer_slot;  // in the peer's memory
  uint64_t base;
  uint32_t trips;
  bool starts;
  uint64_t timeout_ns;
  uint64_t* ns;
};
cudaError_t launch_ping_pong(const PingPongArgs& args, cudaStream_t stream);

// `iterations` one-shot all-reduces of the same `num_units` units in one CTA: iteration k reduces what k - 1 gave.
// False where there is no such kernel: LL and sentinel, sums of bfloat16, 2, 4 and 8 ranks. args.plan is filled here.
bool launch_in_kernel(Protocol protocol, KernelArgs args, uint32_t num_units, uint32_t iterations, cudaStream_t stream);

}  // namespace llcoll
