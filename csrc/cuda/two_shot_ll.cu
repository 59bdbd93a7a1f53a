#include "cuda/launch.cuh"

namespace llcoll {
CudaKernel find_two_shot_ll(const CudaKernelKey& key) { return find_kernel<Ll, true, false>(key); }
}  // namespace llcoll
