// From a call to a launch: buffer layout, grid, chunks, kernel. Depends on sizes, type and grid cap alone.
#pragma once

#include "communicator.h"
#include "cuda/kernel_args.h"
#include "select.h"

namespace llcoll {

// One rank's symmetric buffer: control, the scratches, self-test slots.
struct CudaLayout {
  ScratchShape shape[kNumProtocols];
  uint64_t offset[kNumProtocols];
  uint64_t test_offset;
  bool low_precision;  // LL128 adds 16-bit types in their own precision
  bool wide_packets;   // false: LL in 8-byte packets, and three buffers
  bool multicast;      // broadcasts go to the multicast address, where there is a row for it
  uint64_t bytes;
};
CudaLayout plan_cuda_buffer(const Options& options, uint32_t num_channels, bool wide_packets = true);
// What to allocate before the ranks have agreed on num_channels: enough for any.
uint64_t max_cuda_buffer_bytes(const Options& options);

// Threads per CTA for a part of so many units.
uint32_t threads_for(uint32_t part, uint32_t max_channels);
// Threads of a CTA whose members take one unit each at most.
uint32_t with_idle_warps(uint32_t num_units);

struct LaunchPlan {
  CudaKernel kernel;  // nullptr: no such row
  Protocol protocol;
  uint32_t num_channels;
  uint32_t num_threads;
  Plan cut;
  Message message;
};
// Rounding may leave the last channel without a unit in its last epoch. In a push protocol nothing would then tell the
// peers that it has started that epoch, and the next call could send into slots that they still read: fewer channels.
bool has_idle_epoch(const Plan& cut, uint32_t num_channels);

LaunchPlan plan_launch(const CollectiveCall& call, int num_ranks, const CudaLayout& layout, uint32_t max_channels);

}  // namespace llcoll
