// LLBuffer in CUDA kernels: one per CTA or one per warp.
//   __global__ void kernel(const __grid_constant__ llcoll::LlArgs args, ...) {
//     llcoll::BlockBuffer<llcoll::LlMode::kLl> buffer({args.wait}, {}, args.buffer);
// The grid must be resident as a whole (its blocks wait for the peers' blocks), with at most num_blocks CTAs or warps.
#pragma once

#include <cuda_runtime.h>

#include "llcoll/device_memory.cuh"
#include "llcoll/group.h"
#include "llcoll/ll_group.h"

namespace llcoll {
inline namespace LLC_ISA {

template <LlMode mode, bool multicast = false>
using BlockBuffer = LLBuffer<mode, DeviceMemory, Cta<false>, multicast>;
template <LlMode mode, bool multicast = false>
using WarpBuffer = LLBuffer<mode, DeviceMemory, Warp, multicast>;

// How a rank's own buffer begins; see init_ll_buffer. Then synchronise, then a barrier of all ranks.
inline cudaError_t init_ll_buffer_async(const BufferShape& shape, LlMode mode, void* memory, cudaStream_t stream) {
  cudaError_t error = cudaSuccess;
  init_ll_buffer(shape, mode, [&](uint64_t offset, int byte, uint64_t count) {
    if (error == cudaSuccess) error = cudaMemsetAsync(static_cast<char*>(memory) + offset, byte, count, stream);
  });
  return error;
}

}  // namespace LLC_ISA
}  // namespace llcoll
