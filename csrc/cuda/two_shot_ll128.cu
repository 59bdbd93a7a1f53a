#include "cuda/cta.cuh"
#include "llcoll/device_memory.cuh"
#include "llcoll/group.h"
#include "llcoll/two_shot_ll128.h"

namespace llcoll {
namespace {

static_assert(Ll128<DeviceMemory>::kSlotBytes == 16 && Ll128<DeviceMemory>::kBuffers == 3);
static_assert(kMaxThreads == kMaxTileLines * kLineParts);

template <class Format, int ranks>
__global__ void __launch_bounds__(kMaxThreads, kMinCtasPerSm)
    two_shot_ll128_kernel(const __grid_constant__ KernelArgs args) {
  // More parts at once would spill.
  using Group = LineGroup<Cta<false>, ranks == 0 ? 2 : (ranks < 4 ? ranks : 4)>;
  __shared__ uint32_t displaced[Group::kDisplaced];
  // Every thread of every grid waits; see all_reduce_kernel.
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
  DeviceMemory mem{args.wait};
  const Group group(make_cta<false>(args.order), blockDim.x / kLineParts, args.line_slots, displaced);
  two_shot_ll128<Format, ranks>(mem, group, args.scratch, args.message, args.plan);
}

template <class Format>
CudaKernel find_ranks(int num_ranks) {
  switch (num_ranks) {
    case 2:
      return two_shot_ll128_kernel<Format, 2>;
    case 4:
      return two_shot_ll128_kernel<Format, 4>;
    case 8:
      return two_shot_ll128_kernel<Format, 8>;
    default:
      return two_shot_ll128_kernel<Format, 0>;
  }
}

}  // namespace

CudaKernel find_two_shot_ll128(const CudaKernelKey& key) {
  if (key.op != ReduceOp::kSum) return nullptr;
  switch (key.dtype) {
    case DType::kFloat32:
      return find_ranks<LineFormat<Float32, false>>(key.num_ranks);
    case DType::kFloat16:
      return key.wide ? find_ranks<LineFormat<Float16, true>>(key.num_ranks)
                      : find_ranks<LineFormat<Float16, false>>(key.num_ranks);
    case DType::kBFloat16:
      return key.wide ? find_ranks<LineFormat<BFloat16, true>>(key.num_ranks)
                      : find_ranks<LineFormat<BFloat16, false>>(key.num_ranks);
    default:
      return nullptr;
  }
}

}  // namespace llcoll
