#include "cuda/launch.cuh"
#include "llcoll/ll_narrow.h"

namespace llcoll {

static_assert(LlNarrow<DeviceMemory>::kSlotBytes == 16 && LlNarrow<DeviceMemory>::kBuffers == 3);

// For PCIe, where the link and not the kernel is what takes time: ranks and operator at run time.
template <bool two>
CudaKernel find_narrow(DType dtype) {
  return find_any<LlNarrow, two, Float32, Float64, Float16, BFloat16, Float8E4M3, Float8E5M2, Int8, UInt8, Int32, Int64,
                  Bool>({dtype, ReduceOp::kSum, 0, false});
}
CudaKernel find_ll_narrow(bool two_shot, DType dtype) {
  return two_shot ? find_narrow<true>(dtype) : find_narrow<false>(dtype);
}

}  // namespace llcoll
