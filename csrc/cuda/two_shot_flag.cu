#include "cuda/launch.cuh"

namespace llcoll {
CudaKernel find_two_shot_flag(const CudaKernelKey& key) { return find_kernel<Flag, true, false>(key); }
}  // namespace llcoll
