// The entry of the kernels of one exchange, and the table rows of those that reduce.
#pragma once

#include "cuda/cta.cuh"
#include "cuda/exchange_kernels.h"
#include "cuda/kernel_args.h"
#include "llcoll/all_gather.h"
#include "llcoll/all_to_all.h"
#include "llcoll/device_memory.cuh"
#include "llcoll/flag.h"
#include "llcoll/group.h"
#include "llcoll/reduce_scatter.h"
#include "llcoll/sentinel.h"

namespace llcoll {

template <template <class> class Protocol, bool to_all>
__global__ void __launch_bounds__(kMaxThreads, kMinCtasPerSm) copy_kernel(const __grid_constant__ ExchangeArgs args) {
  // Every thread waits, since the wait is not transitive (launch.cuh).
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
  DeviceMemory mem{args.wait};
  const auto group = make_cta<false>(args.order);
  // Copies move bytes: the type is of no account.
  if constexpr (to_all) {
    all_to_all<Protocol, UInt8>(mem, group, args.scratch, args.input, args.output, args.cut);
  } else {
    all_gather<Protocol, UInt8>(mem, group, args.scratch, args.input, args.output, args.cut);
  }
}

template <template <class> class Protocol, class Type, class Op>
__global__ void __launch_bounds__(kMaxThreads, kMinCtasPerSm) reduce_kernel(const __grid_constant__ ExchangeArgs args) {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
  DeviceMemory mem{args.wait};
  const auto group = make_cta<false>(args.order);
  Op op;
  if constexpr (!std::is_same_v<Op, SumOp>) op.value = args.op;
  reduce_scatter<Protocol, Type, 0>(mem, group, args.scratch, args.input, args.output, args.cut, op);
}

template <template <class> class Protocol, class Op, class... Types>
ExchangeKernel find_reduce(DType dtype) {
  ExchangeKernel found = nullptr;
  ((Types::kDType == dtype ? void(found = reduce_kernel<Protocol, Types, Op>) : void()), ...);
  return found;
}

// Ranks are known at run time, in batches of four; sums of the model types have the operator fixed.
template <template <class> class Protocol, bool kFloatsOnly>
ExchangeKernel find_reduce_scatter(DType dtype, ReduceOp op) {
  ExchangeKernel found = nullptr;
  if (op == ReduceOp::kSum) found = find_reduce<Protocol, SumOp, Float32, BFloat16, Float16>(dtype);
  if (found == nullptr) {
    found = find_reduce<Protocol, AnyOp, Float32, Float64, Float16, BFloat16, Float8E4M3, Float8E5M2>(dtype);
  }
  if constexpr (!kFloatsOnly) {
    if (found == nullptr) found = find_reduce<Protocol, AnyOp, Int8, UInt8, Int32, Int64, Bool>(dtype);
  }
  return found;
}

}  // namespace llcoll
