#include "cuda/launch.cuh"

namespace llcoll {
CudaKernel find_one_shot_sentinel(const CudaKernelKey& key) { return find_kernel<Sentinel, false, true>(key); }
}  // namespace llcoll
