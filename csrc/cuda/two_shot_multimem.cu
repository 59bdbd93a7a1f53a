#include "cuda/launch_pull.cuh"

namespace llcoll {
namespace {

// Ranks at run time: the switch does the work that grows with them.
template <class Type>
__global__ void __launch_bounds__(kMaxPullThreads, kMinCtasPerSm)
    multimem_kernel(const __grid_constant__ KernelArgs args) {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();  // as in all_reduce_kernel: every thread, ahead of everything
#endif
  DeviceMemory mem{args.wait};
  const Cta<false> group;
  two_shot_pull<Type, 0, true>(mem, group, args.scratch, args.symmetric, args.message, args.plan, SumOp{});
}

}  // namespace

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
