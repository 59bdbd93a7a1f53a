// A kernel's parameters and the keys of the kernel table. Host and device.
#pragma once

#include "llcoll/device_wait.h"
#include "llcoll/layout.h"
#include "llcoll/message.h"

namespace llcoll {

// No grid is larger, so no scratch has more channels.
inline constexpr uint32_t kMaxChannels = 128;

// How a launch stands to the one before it and the one after it (channel.h, await_last_launch).
struct LaunchOrder {
  bool early_trigger;                  // dependents may start before this launch ends: captured ones
  uint32_t launch;                     // id of this launch
  uint32_t last_launch[kMaxChannels];  // per channel: the launch of this capture that may still be at work; 0: none
};

struct KernelArgs {
  Scratch scratch;
  Message message;
  Plan plan;
  DeviceWait wait;
  ReduceOp op;
  uint32_t line_slots;  // LL128: line_slots_of the scratch
  Symmetric symmetric;  // flag protocol
  LaunchOrder order;
};
static_assert(sizeof(KernelArgs) <= 4096, "the limit of kernel parameters");

// One CTA of this size is resident per SM at the least: the residency cap counts on it.
inline constexpr int kMaxThreads = 512;
inline constexpr int kMinCtasPerSm = 2;      // of the push kernels, which leave room for others' kernels
inline constexpr int kMinPullCtasPerSm = 1;  // each thread keeps many loads in flight and needs its 128 registers

using CudaKernel = void (*)(KernelArgs);

struct CudaKernelKey {
  DType dtype;
  ReduceOp op;
  int num_ranks;
  bool once;          // the launch gives each thread one unit at most
  bool wide = false;  // LL128: 16-bit elements are added as float32
};

// One file each; nullptr where the table has no row. `once` is a wish: a row without such a variant loops.
CudaKernel find_one_shot_ll(const CudaKernelKey& key);
CudaKernel find_one_shot_sentinel(const CudaKernelKey& key);
CudaKernel find_one_shot_flag(const CudaKernelKey& key);
CudaKernel find_ll_narrow(bool two_shot, DType dtype);
CudaKernel find_two_shot_ll(const CudaKernelKey& key);
CudaKernel find_two_shot_sentinel(const CudaKernelKey& key);
CudaKernel find_two_shot_flag(const CudaKernelKey& key);
CudaKernel find_two_shot_multimem(const CudaKernelKey& key);
CudaKernel find_multicast_barrier();
CudaKernel find_multicast(Algorithm algorithm, const CudaKernelKey& key);
CudaKernel find_two_shot_ll128(const CudaKernelKey& key);

}  // namespace llcoll
