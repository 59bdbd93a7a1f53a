#include "cuda/launch_pull.cuh"

namespace llcoll {
CudaKernel find_one_shot_flag(const CudaKernelKey& key) { return find_pull<false>(key); }
}  // namespace llcoll
