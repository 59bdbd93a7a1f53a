#include "cuda/launch_pull.cuh"

namespace llcoll {
namespace {

// Ranks at run time: the switch does the work that grows with them.
template <class Type>
__global__ void __launch_bounds__(kMaxThreads, kMinPullCtasPerSm)
    multimem_kernel(const __grid_constant__ KernelArgs args) {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();  // as in all_reduce_kernel: every thread, ahead of everything
#endif
  DeviceMemory mem{args.wait};
  const auto group = make_cta<false>(args.order);
  two_shot_pull<Type, 0, true>(mem, group, args.scratch, args.symmetric, args.message, args.plan, SumOp{});
}

// The barrier is an empty one-shot: one word per rank, to all peers by one store.
__global__ void __launch_bounds__(kMaxThreads, kMinPullCtasPerSm)
    multicast_barrier_kernel(const __grid_constant__ KernelArgs args) {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
  DeviceMemory mem{args.wait};
  const auto group = make_cta<false>(args.order);
  one_shot_pull<UInt8, 0, true>(mem, group, args.scratch, args.symmetric, args.message, args.plan, SumOp{});
}

}  // namespace

CudaKernel find_multicast_barrier() { return multicast_barrier_kernel; }

CudaKernel find_two_shot_multimem(const CudaKernelKey& key) {
  if (key.op != ReduceOp::kSum) return nullptr;
  switch (key.dtype) {
    case DType::kFloat32:
      return multimem_kernel<Float32>;
    case DType::kFloat16:
      return multimem_kernel<Float16>;
    case DType::kBFloat16:
      return multimem_kernel<BFloat16>;
    default:
      return nullptr;
  }
}

}  // namespace llcoll
