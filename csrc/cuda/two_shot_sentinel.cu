#include "cuda/launch.cuh"

namespace llcoll {
CudaKernel find_two_shot_sentinel(const CudaKernelKey& key) { return find_kernel<Sentinel, true, true>(key); }
}  // namespace llcoll
