// The flag kernels' entry, and the table rows that find them.
#pragma once

#include "cuda/launch.cuh"
#include "llcoll/pull.h"

namespace llcoll {

static_assert(Pull<DeviceMemory>::kSlotBytes == 16 && Pull<DeviceMemory>::kBuffers == 2);  // as launch_plan.cpp has it
static_assert(Pull<DeviceMemory>::kSlotBytes % kPlaceBytes == 0);

template <bool two, class Type, int ranks, class Op>
__global__ void __launch_bounds__(kMaxThreads, kMinPullCtasPerSm) pull_kernel(const __grid_constant__ KernelArgs args) {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();  // as in all_reduce_kernel: every thread, ahead of everything
#endif
  DeviceMemory mem{args.wait};
  const auto group = make_cta<false>(args.order);
  Op op;
  if constexpr (!std::is_same_v<Op, SumOp>) op.value = args.op;
  if constexpr (two) {
    two_shot_pull<Type, ranks>(mem, group, args.scratch, args.symmetric, args.message, args.plan, op);
  } else {
    one_shot_pull<Type, ranks>(mem, group, args.scratch, args.symmetric, args.message, args.plan, op);
  }
}

template <bool two, class Type>
CudaKernel find_pull_sum(int num_ranks) {
  switch (num_ranks) {
    case 2:
      return pull_kernel<two, Type, 2, SumOp>;
    case 4:
      return pull_kernel<two, Type, 4, SumOp>;
    case 8:
      return pull_kernel<two, Type, 8, SumOp>;
    default:
      return nullptr;
  }
}

template <bool two, class... Types>
CudaKernel find_pull_any(DType dtype) {
  CudaKernel found = nullptr;
  ((Types::kDType == dtype ? void(found = pull_kernel<two, Types, 0, AnyOp>) : void()), ...);
  return found;
}

template <bool two>
CudaKernel find_pull(const CudaKernelKey& key) {
  CudaKernel found = nullptr;
  if (key.op == ReduceOp::kSum) {
    if (key.dtype == DType::kFloat32) found = find_pull_sum<two, Float32>(key.num_ranks);
    if (key.dtype == DType::kBFloat16) found = find_pull_sum<two, BFloat16>(key.num_ranks);
    if (key.dtype == DType::kFloat16) found = find_pull_sum<two, Float16>(key.num_ranks);
  }
  if (found != nullptr) return found;
  return find_pull_any<two, Float32, Float64, Float16, BFloat16, Float8E4M3, Float8E5M2, Int8, UInt8, Int32, Int64,
                       Bool>(key.dtype);
}

}  // namespace llcoll
