#include "cuda/self_test.cuh"

#include "llcoll/device_memory.cuh"

namespace llcoll {
namespace {

__global__ void self_test_kernel(const __grid_constant__ SelfTestArgs args) {
  const int peer = threadIdx.x;
  if (args.multicast != nullptr && peer == args.rank) {
    for (uint64_t k = 1; k <= kNumSelfTestPackets; ++k) {
      ptx::multicast_16(args.multicast + args.rank, __builtin_bit_cast(Bytes<16>, Packet{k, k}));
    }
  }
  if (peer >= args.num_ranks || peer == args.rank) return;
  const uint64_t start = ptx::global_ns();
  uint32_t result = 0;
  uint64_t seen = 0;
  uint64_t sent = args.multicast != nullptr ? kNumSelfTestPackets : 0;
  while (seen < kNumSelfTestPackets || sent < kNumSelfTestPackets) {
    if (sent < kNumSelfTestPackets) {
      ++sent;
      ptx::store_relaxed_16(args.slots[peer] + args.rank, sent, sent);
    }
    uint64_t payload, flag;
    ptx::load_relaxed_16(args.slots[args.rank] + peer, payload, flag);
    if (payload != flag) result = 1;
    seen = flag;
    if (ptx::global_ns() - start > args.timeout_ns) {
      result = 2;
      break;
    }
  }
  if (result != 0) atomicMax(args.result, result);
}

}  // namespace

cudaError_t launch_self_test(const SelfTestArgs& args, cudaStream_t stream) {
  self_test_kernel<<<1, 128, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace llcoll
