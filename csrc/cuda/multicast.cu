// Rows for groups with a multicast address. Not yet run: no machine at hand has one.
#include "cuda/launch.cuh"
#include "llcoll/multicast.h"

namespace llcoll {
namespace {

static_assert(LlMulticast<DeviceMemory>::kBuffers == Ll<DeviceMemory>::kBuffers);
static_assert(SentinelMulticast<DeviceMemory>::kBuffers == Sentinel<DeviceMemory>::kBuffers);

// One store reaches all, so the number of ranks is unrolled where it is a node's, for what is received.
template <template <class> class Protocol, bool two, class Type>
CudaKernel find_for(const CudaKernelKey& key) {
  if (key.num_ranks != 8) return all_reduce_kernel<Protocol, two, Type, 0, SumOp, false>;
  return key.once && !two ? all_reduce_kernel<Protocol, two, Type, 8, SumOp, true>
                          : all_reduce_kernel<Protocol, two, Type, 8, SumOp, false>;
}

template <template <class> class Protocol, bool two>
CudaKernel find_type(const CudaKernelKey& key) {
  switch (key.dtype) {
    case DType::kFloat32:
      return find_for<Protocol, two, Float32>(key);
    case DType::kBFloat16:
      return find_for<Protocol, two, BFloat16>(key);
    case DType::kFloat16:
      return find_for<Protocol, two, Float16>(key);
    default:
      return nullptr;
  }
}

}  // namespace

CudaKernel find_multicast(Algorithm algorithm, const CudaKernelKey& key) {
  if (key.op != ReduceOp::kSum) return nullptr;
  switch (algorithm) {
    case Algorithm::kOneShotLl:
      return find_type<LlMulticast, false>(key);
    case Algorithm::kOneShotSentinel:
      return find_type<SentinelMulticast, false>(key);
    case Algorithm::kTwoShotSentinel:
      return find_type<SentinelMulticast, true>(key);
    default:
      return nullptr;
  }
}

}  // namespace llcoll
