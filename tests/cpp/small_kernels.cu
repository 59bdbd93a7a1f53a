// The kernels of small messages and nothing else, for the latency gate (.ci/sass.py): the unrolled sums of the model
// types in which each thread handles one unit at most.
#include "cuda/launch.cuh"

namespace llcoll {

template <template <class> class Protocol, bool two>
CudaKernel find_small(const CudaKernelKey& key) {
  return key.dtype == DType::kFloat32 ? find_sum<Protocol, two, Float32>(key) : find_sum<Protocol, two, BFloat16>(key);
}

CudaKernel find_small_kernel(bool sentinel, bool two, const CudaKernelKey& key) {
  if (sentinel) return two ? find_small<Sentinel, true>(key) : find_small<Sentinel, false>(key);
  return two ? find_small<Ll, true>(key) : find_small<Ll, false>(key);
}

}  // namespace llcoll
