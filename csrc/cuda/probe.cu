#include "cuda/probe.cuh"

#include "check.h"
#include "llcoll/device_memory.cuh"
#include "llcoll/group.h"
#include "llcoll/ll.h"
#include "llcoll/one_shot.h"
#include "llcoll/sentinel.h"

namespace llcoll {
namespace {

constexpr int kSteps = 2000;
constexpr uint32_t kPollsPerLook = 4096;
// More than L1 holds would not matter: relaxed.sys loads go to L2.
constexpr size_t kProbeBytes = kSteps * 128;

// The packets' payloads are zero, so the chain stays on one line, as a poll does.
__global__ void dependent_loads_kernel(const Packet* chain, uint64_t* ns) {
  uint64_t at = 0, flag = 0;
  for (int warm = 0; warm < 2; ++warm) {
    const uint64_t start = ptx::global_ns();
    for (int i = 0; i < kSteps; ++i) ptx::load_relaxed_16(chain + at, at, flag);
    ns[0] = ptx::global_ns() - start;
  }
  ns[1] = at + flag;
}

template <bool fenced>
__global__ void stores_kernel(Packet* to, uint64_t* ns) {
  for (int warm = 0; warm < 2; ++warm) {
    const uint64_t start = ptx::global_ns();
    for (int i = 0; i < kSteps; ++i) {
      ptx::store_relaxed_16(to + i * (128 / sizeof(Packet)), 0, 0);
      if (fenced) ptx::fence_acq_rel_sys();
    }
    ns[0] = ptx::global_ns() - start;
  }
}

// Pairs with the same kernel on the peer: its relaxed store into own_slot is what the relaxed poll here sees.
__global__ void ping_pong_kernel(const __grid_constant__ PingPongArgs args) {
  const uint64_t start = ptx::global_ns();
  *args.ns = 0;
  for (uint64_t trip = 1; trip <= args.trips; ++trip) {
    const uint64_t wanted = args.base + trip;
    if (args.starts) ptx::store_relaxed_16(args.peer_slot, wanted, wanted);
    uint64_t payload = 0, flag = 0;
    for (uint32_t polls = 1; flag < wanted; ++polls) {
      ptx::load_relaxed_16(args.own_slot, payload, flag);
      if (polls % kPollsPerLook == 0 && ptx::global_ns() - start > args.timeout_ns) return;
    }
    if (!args.starts) ptx::store_relaxed_16(args.peer_slot, wanted, wanted);
  }
  *args.ns = ptx::global_ns() - start;
}

template <class Unit>
struct Again {
  Unit& value;
  template <class, class Memory>
  LLC_FN Unit read(const Memory&, uint32_t) const {
    return value;
  }
  template <class Memory>
  LLC_FN void write(const Memory&, uint32_t, Unit w) const {
    value = w;
  }
};

// One unit for each thread, again and again.
struct Repeating : Cta<true> {
  static constexpr bool kOneEpoch = false;
};

template <template <class> class Protocol, int ranks>
__global__ void __launch_bounds__(kMaxThreads)
    again_kernel(const __grid_constant__ KernelArgs args, const uint32_t units) {
  DeviceMemory mem{args.wait};
  using Unit = typename Protocol<DeviceMemory>::Unit;
  Unit value = args.message.read<Unit>(mem, threadIdx.x % units);
  one_shot<Protocol, BFloat16, ranks>(mem, Repeating{}, args.scratch, Again<Unit>{value}, args.plan, SumOp{});
  if (threadIdx.x < units) args.message.write(mem, threadIdx.x, value);
}

using AgainKernel = void (*)(KernelArgs, uint32_t);

template <template <class> class Protocol>
AgainKernel find_again(int num_ranks) {
  return num_ranks == 2   ? again_kernel<Protocol, 2>
         : num_ranks == 4 ? again_kernel<Protocol, 4>
         : num_ranks == 8 ? again_kernel<Protocol, 8>
                          : nullptr;
}

void require(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  cudaGetLastError();
  fail_with(what, ": ", cudaGetErrorString(error));
}

struct Buffer {
  explicit Buffer(size_t bytes) { require(cudaMalloc(&data, bytes), "probe: cudaMalloc"); }
  ~Buffer() { cudaFree(data); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  void* data = nullptr;
};

}  // namespace

MemoryTimes probe_memory(cudaStream_t stream) {
  const Buffer memory(kProbeBytes), result(2 * sizeof(uint64_t));
  auto* packets = static_cast<Packet*>(memory.data);
  auto* ns = static_cast<uint64_t*>(result.data);
  require(cudaMemsetAsync(memory.data, 0, kProbeBytes, stream), "probe: cudaMemset");
  auto finish = [&] {
    uint64_t taken = 0;
    require(cudaGetLastError(), "probe: launch");
    require(cudaMemcpyAsync(&taken, ns, sizeof(taken), cudaMemcpyDeviceToHost, stream), "probe: copy");
    require(cudaStreamSynchronize(stream), "probe");
    return static_cast<double>(taken) / kSteps;
  };
  MemoryTimes times{};
  dependent_loads_kernel<<<1, 1, 0, stream>>>(packets, ns);
  times.dependent_load_ns = finish();
  stores_kernel<true><<<1, 1, 0, stream>>>(packets, ns);
  times.fenced_store_ns = finish();
  stores_kernel<false><<<1, 1, 0, stream>>>(packets, ns);
  times.store_ns = finish();
  return times;
}

cudaError_t launch_ping_pong(const PingPongArgs& args, cudaStream_t stream) {
  ping_pong_kernel<<<1, 1, 0, stream>>>(args);
  return cudaGetLastError();
}

bool launch_in_kernel(Protocol protocol, KernelArgs args, uint32_t num_units, uint32_t iterations,
                      cudaStream_t stream) {
  AgainKernel kernel = nullptr;
  if (protocol == kLl) kernel = find_again<Ll>(args.scratch.shape.num_ranks);
  if (protocol == kSentinel) kernel = find_again<Sentinel>(args.scratch.shape.num_ranks);
  if (kernel == nullptr || num_units == 0 || num_units > static_cast<uint32_t>(kMaxThreads)) return false;
  const uint32_t all = num_units * iterations;
  args.plan = {all, all, num_units, iterations};
  const uint32_t whole_warps = (num_units + 31) / 32 * 32;
  kernel<<<1, whole_warps, 0, stream>>>(args, num_units);
  return true;
}

}  // namespace llcoll
