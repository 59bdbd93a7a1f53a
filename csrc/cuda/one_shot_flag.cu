#include "cuda/launch.cuh"

namespace llcoll {
CudaKernel find_one_shot_flag(const CudaKernelKey& key) { return find_kernel<Flag, false, false>(key); }
}  // namespace llcoll
