#include "cuda/launch.cuh"

namespace llcoll {
CudaKernel find_one_shot_ll(const CudaKernelKey& key) { return find_kernel<Ll, false, false>(key); }
}  // namespace llcoll
