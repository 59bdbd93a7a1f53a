#include "cuda/launch_pull.cuh"

namespace llcoll {
CudaKernel find_two_shot_flag(const CudaKernelKey& key) { return find_pull<true>(key); }
}  // namespace llcoll
