// A kernel's entry, and the table rows that find it.
#pragma once

#include "cuda/cta.cuh"
#include "llcoll/device_memory.cuh"
#include "llcoll/flag.h"
#include "llcoll/group.h"
#include "llcoll/sentinel.h"
#include "llcoll/two_shot.h"

namespace llcoll {

// launch_plan.cpp repeats these, since it is compiled without nvcc.
static_assert(Ll<DeviceMemory>::kSlotBytes == 16 && Ll<DeviceMemory>::kBuffers == 2);
static_assert(Sentinel<DeviceMemory>::kSlotBytes == 16 && Sentinel<DeviceMemory>::kBuffers == 3);
static_assert(Flag<DeviceMemory>::kSlotBytes == 16 && Flag<DeviceMemory>::kBuffers == 2);

template <template <class> class Protocol, bool two, class Type, int ranks, class Op, bool once>
__global__ void __launch_bounds__(kMaxThreads, kMinCtasPerSm)
    all_reduce_kernel(const __grid_constant__ KernelArgs args) {
  // Everything below touches state, slots or user data: all of it behind the previous grid. Every thread waits, since
  // the wait is not transitive: a grid that nobody waited in would let the one after it overlap the one before.
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
  DeviceMemory mem{args.wait};
  const auto group = make_cta<once>(args.order);
  Op op;
  if constexpr (!std::is_same_v<Op, SumOp>) op.value = args.op;
  if constexpr (two) {
    two_shot<Protocol, Type, ranks>(mem, group, args.scratch, args.message, args.plan, op);
  } else {
    one_shot<Protocol, Type, ranks>(mem, group, args.scratch, args.message, args.plan, op);
  }
}

// Sums of the model types at 2, 4 and 8 ranks are unrolled; everything else takes ranks and operator at run time.
// `once` variants exist for those sums only.
template <template <class> class Protocol, bool two, class Type>
CudaKernel find_sum(const CudaKernelKey& key) {
  constexpr bool kHasOnce = Protocol<DeviceMemory>::kPush;
  switch (key.num_ranks) {
    case 2:
      return key.once && kHasOnce ? all_reduce_kernel<Protocol, two, Type, 2, SumOp, kHasOnce>
                                  : all_reduce_kernel<Protocol, two, Type, 2, SumOp, false>;
    case 4:
      return key.once && kHasOnce ? all_reduce_kernel<Protocol, two, Type, 4, SumOp, kHasOnce>
                                  : all_reduce_kernel<Protocol, two, Type, 4, SumOp, false>;
    case 8:
      return key.once && kHasOnce ? all_reduce_kernel<Protocol, two, Type, 8, SumOp, kHasOnce>
                                  : all_reduce_kernel<Protocol, two, Type, 8, SumOp, false>;
    default:
      return nullptr;
  }
}

template <template <class> class Protocol, bool two, class... Types>
CudaKernel find_any(const CudaKernelKey& key) {
  CudaKernel found = nullptr;
  ((Types::kDType == key.dtype ? void(found = all_reduce_kernel<Protocol, two, Types, 0, AnyOp, false>) : void()), ...);
  return found;
}

template <template <class> class Protocol, bool two, bool kFloatsOnly>
CudaKernel find_kernel(const CudaKernelKey& key) {
  CudaKernel found = nullptr;
  if (key.op == ReduceOp::kSum) {
    if (key.dtype == DType::kFloat32) found = find_sum<Protocol, two, Float32>(key);
    if (key.dtype == DType::kBFloat16) found = find_sum<Protocol, two, BFloat16>(key);
    if (key.dtype == DType::kFloat16) found = find_sum<Protocol, two, Float16>(key);
  }
  if (found == nullptr) {
    found = find_any<Protocol, two, Float32, Float64, Float16, BFloat16, Float8E4M3, Float8E5M2>(key);
  }
  if constexpr (!kFloatsOnly) {
    if (found == nullptr) found = find_any<Protocol, two, Int8, UInt8, Int32, Int64, Bool>(key);
  }
  return found;
}

}  // namespace llcoll
