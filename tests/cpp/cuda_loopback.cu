// N ranks as N threads and streams of ONE process on one GPU: correctness of every algorithm, latency of graphs of
// calls, and latency inside one launch, against the loopback speed of light measured in the same run. No torch, no MPS.
//   cuda_loopback check|graph|kernel RANKS
#include <cuda_runtime.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>

#include "check.h"
#include "cuda/cuda_communicator.h"
#include "cuda/launch.cuh"
#include "cuda/launch_plan.h"
#include "cuda_or_exit.h"

using namespace llcoll;

namespace {

constexpr Algorithm kAlgorithms[] = {Algorithm::kOneShotLl,       Algorithm::kOneShotSentinel, Algorithm::kTwoShotLl,
                                     Algorithm::kTwoShotSentinel, Algorithm::kOneShotFlag,     Algorithm::kTwoShotFlag};

struct World {
  int num_ranks;
  Options options;
  CudaMemory memory;
  std::vector<std::string> board;
  std::barrier<> gate;
  std::vector<std::shared_ptr<Communicator>> communicators;

  explicit World(int n) : num_ranks(n), board(n), gate(n), communicators(n) {
    options.world_size = n;
    options.timeout_s = 5;
    options.group_name = "loopback";
    memory.bytes = cuda_buffer_bytes(options);
    for (int r = 0; r < n; ++r) {
      void* p = nullptr;
      CUDA(cudaMalloc(&p, memory.bytes));
      memory.buffers.push_back(reinterpret_cast<uint64_t>(p));
    }
  }
  std::vector<std::string> all_gather(int rank, const std::string& own) {
    board[rank] = own;
    gate.arrive_and_wait();
    auto all = board;
    gate.arrive_and_wait();
    return all;
  }
  void run(const std::function<void(int, cudaStream_t)>& body) {
    std::vector<std::thread> threads;
    for (int r = 0; r < num_ranks; ++r) {
      threads.emplace_back([&, r] {
        try {
          cudaStream_t stream;
          CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
          body(r, stream);
        } catch (const std::exception& e) {
          std::printf("rank %d: %s\n", r, e.what());
          std::fflush(stdout);
          std::exit(4);
        }
      });
    }
    for (auto& t : threads) t.join();
  }
  void connect(int rank) {
    Options mine = options;
    mine.rank = rank;
    communicators[rank] =
        make_cuda_communicator(mine, memory, [this, rank](const std::string& own) { return all_gather(rank, own); });
  }
};

float value_at(size_t i, int rank) { return static_cast<float>((i * 7 + rank * 13) % 127) - 40.0f; }

int check(int n) {
  World world(n);
  std::atomic<int> wrong{0};
  world.run([&](int rank, cudaStream_t stream) {
    world.connect(rank);
    for (size_t numel : {1, 2, 3, 7, 8, 9, 31, 33, 1024, 8191, 8195, 65537, 1 << 20, (1 << 20) + 17, 9'000'001}) {
      float* host;  // pinned: a copy to pageable memory holds a lock of the driver while it waits for its stream
      CUDA(cudaHostAlloc(reinterpret_cast<void**>(&host), 2 * (numel + 1) * sizeof(float), 0));
      float* got = host + numel + 1;
      for (size_t i = 0; i < numel; ++i) host[i] = value_at(i, rank);
      float* device;
      CUDA(cudaMalloc(&device, (numel + 1) * sizeof(float)));
      world.gate.arrive_and_wait();  // allocations may wait for the device, where a peer may already wait for this rank
      for (const Algorithm algorithm : kAlgorithms) {
        for (int shift = 0; shift < 2; ++shift) {
          CUDA(cudaMemcpyAsync(device + shift, host, numel * 4, cudaMemcpyHostToDevice, stream));
          world.communicators[rank]->run(
              {device + shift, device + shift, numel, DType::kFloat32, ReduceOp::kSum, algorithm, stream});
          CUDA(cudaMemcpyAsync(got, device + shift, numel * 4, cudaMemcpyDeviceToHost, stream));
          CUDA(cudaStreamSynchronize(stream));
          world.communicators[rank]->check();
          size_t bad = 0;
          for (size_t i = 0; i < numel; ++i) {
            float expected = 0;
            for (int r = 0; r < n; ++r) expected += value_at(i, r);
            bad += got[i] != expected;
          }
          if (bad != 0) {
            ++wrong;
            std::printf("rank %d: %s of %zu shift %d: %zu wrong\n", rank, name_of(algorithm), numel, shift, bad);
          }
        }
      }
      world.gate.arrive_and_wait();  // cudaFree waits for the device, so for the peers' kernels too
      CUDA(cudaFree(device));
      CUDA(cudaFreeHost(host));
    }
  });
  std::printf("check %d ranks: %d wrong\n", n, wrong.load());
  return wrong == 0 ? 0 : 1;
}

// Median us per call of graphs of kCalls in-place calls, all ranks replaying together.
int graph(int n) {
  constexpr int kCalls = 50, kReplays = 30;
  World world(n);
  std::vector<double> times(n);
  world.run([&](int rank, cudaStream_t stream) {
    world.connect(rank);
    if (rank == 0) {
      std::printf("graph, bf16, %d ranks, us per call\n%10s", n, "bytes");
      for (const Algorithm a : kAlgorithms) std::printf(" %18s", name_of(a));
      std::printf("\n");
    }
    for (size_t bytes = 128; bytes <= 4u << 20; bytes *= bytes < 65536 ? 8 : 4) {
      void* device;
      CUDA(cudaMalloc(&device, bytes));
      CUDA(cudaMemset(device, 0x11, bytes));
      if (rank == 0) std::printf("%10zu", bytes);
      for (const Algorithm algorithm : kAlgorithms) {
        if (n * bytes > 16u << 20 && !is_two_shot(algorithm)) {
          if (rank == 0) std::printf(" %18s", "-");
          continue;
        }
        cudaGraph_t graph;
        cudaGraphExec_t exec;
        CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
        for (int k = 0; k < kCalls; ++k) {
          world.communicators[rank]->run(
              {device, device, bytes / 2, DType::kBFloat16, ReduceOp::kSum, algorithm, stream});
        }
        CUDA(cudaStreamEndCapture(stream, &graph));
        CUDA(cudaGraphInstantiate(&exec, graph, 0));
        CUDA(cudaGraphUpload(exec, stream));
        CUDA(cudaStreamSynchronize(stream));
        cudaEvent_t begin, end;
        CUDA(cudaEventCreate(&begin));
        CUDA(cudaEventCreate(&end));
        std::vector<float> ms(kReplays);
        for (int k = 0; k < kReplays; ++k) {
          world.gate.arrive_and_wait();
          CUDA(cudaEventRecord(begin, stream));
          CUDA(cudaGraphLaunch(exec, stream));
          CUDA(cudaEventRecord(end, stream));
          CUDA(cudaStreamSynchronize(stream));
          CUDA(cudaEventElapsedTime(&ms[k], begin, end));
        }
        world.communicators[rank]->check();
        std::sort(ms.begin(), ms.end());
        times[rank] = 1e3 * ms[kReplays / 2] / kCalls;
        world.gate.arrive_and_wait();
        if (rank == 0) std::printf(" %18.2f", *std::min_element(times.begin(), times.end()));
        CUDA(cudaGraphExecDestroy(exec));
        CUDA(cudaGraphDestroy(graph));
        world.gate.arrive_and_wait();
      }
      if (rank == 0) std::printf("\n"), std::fflush(stdout);
      world.gate.arrive_and_wait();
      CUDA(cudaFree(device));
    }
  });
  return 0;
}

// The same few units again and again: iteration k reduces what k - 1 gave, in one launch.
template <class Unit>
struct Again {
  Unit& value;
  template <class, class Memory>
  __device__ Unit read(const Memory&, uint32_t) const {
    return value;
  }
  template <class Memory>
  __device__ void write(const Memory&, uint32_t, Unit w) const {
    value = w;
  }
};

struct Repeating : Cta<true> {
  static constexpr bool kOneEpoch = false;
};

template <template <class> class Protocol, int ranks>
__global__ void __launch_bounds__(512) again_kernel(const __grid_constant__ KernelArgs args, uint32_t units) {
  DeviceMemory mem{args.wait};
  using Unit = typename Protocol<DeviceMemory>::Unit;
  Unit value = args.message.read<Unit>(mem, threadIdx.x % units);
  one_shot<Protocol, BFloat16, ranks>(mem, Repeating{}, args.scratch, Again<Unit>{value}, args.plan, SumOp{});
  if (threadIdx.x < units) args.message.write(mem, threadIdx.x, value);
}

__global__ void dependent_loads(uint64_t* chain, int steps, uint64_t* ns) {
  uint64_t at = 0;
  for (int warm = 0; warm < 2; ++warm) {
    const uint64_t t = ptx::global_ns();
    for (int i = 0; i < steps; ++i) {
      asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(at) : "l"(chain + at) : "memory");
    }
    ns[0] = ptx::global_ns() - t;
  }
  ns[1] = at;
}
__global__ void stores_and_fences(uint64_t* at, int steps, uint64_t* ns, bool fence) {
  for (int warm = 0; warm < 2; ++warm) {
    const uint64_t t = ptx::global_ns();
    for (int i = 0; i < steps; ++i) {
      asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(at + 16 * i), "l"(uint64_t(i)) : "memory");
      if (fence) ptx::fence_acq_rel_sys();
    }
    ns[0] = ptx::global_ns() - t;
  }
}

template <int ranks>
int in_kernel() {
  constexpr uint32_t kIterations = 4000;
  World world(ranks);
  std::vector<std::vector<float>> us(ranks);
  uint64_t* probe;
  uint64_t* ns;
  CUDA(cudaMalloc(&probe, 1 << 22));
  CUDA(cudaMemset(probe, 0, 1 << 22));
  CUDA(cudaMallocManaged(&ns, 16));
  const int steps = 2000;
  dependent_loads<<<1, 1>>>(probe, steps, ns);
  CUDA(cudaDeviceSynchronize());
  const double load = double(ns[0]) / steps;
  stores_and_fences<<<1, 1>>>(probe, steps, ns, true);
  CUDA(cudaDeviceSynchronize());
  const double fenced = double(ns[0]) / steps;
  stores_and_fences<<<1, 1>>>(probe, steps, ns, false);
  CUDA(cudaDeviceSynchronize());
  const double store = double(ns[0]) / steps;
  std::printf("dependent load %.1f ns, store+fence %.1f ns, store %.1f ns; bound 2 x load + store = %.3f us\n", load,
              fenced, store, 1e-3 * (2 * load + store));
  world.run([&](int rank, cudaStream_t stream) {
    world.connect(rank);
    char* device;
    CUDA(cudaMalloc(&device, 4096));
    CUDA(cudaMemset(device, 0x11, 4096));
    const CudaLayout layout = plan_cuda_buffer(world.options, 132 / ranks);
    for (int protocol = 0; protocol < 2; ++protocol) {
      for (uint32_t bytes : {128u, 1024u}) {
        KernelArgs args{};
        args.scratch.shape = layout.shape[protocol];
        args.scratch.rank = rank;
        args.wait = {};
        args.wait.rank = rank;
        args.wait.own_abort = &reinterpret_cast<DeviceControl*>(world.memory.buffers[rank])->aborted;
        args.wait.num_ranks = ranks;
        args.wait.timeout_ns = 2'000'000'000;
        CUDA(cudaHostAlloc(reinterpret_cast<void**>(&args.wait.record), sizeof(FailureRecord), cudaHostAllocMapped));
        for (int r = 0; r < ranks; ++r) {
          args.scratch.memory[r] = reinterpret_cast<char*>(world.memory.buffers[r]) + layout.offset[protocol];
          args.wait.controls[r] = reinterpret_cast<DeviceControl*>(world.memory.buffers[r]);
        }
        find_records(args.scratch);
        const uint32_t unit = protocol == kLl ? 8 : 16;
        const uint32_t units = bytes / unit;
        args.message = make_message(device, device, bytes, 2, int(unit), true, true);
        args.plan = {units * kIterations, units * kIterations, units, kIterations};
        us[rank].clear();
        for (int k = 0; k < 20; ++k) {
          world.gate.arrive_and_wait();
          cudaEvent_t begin, end;
          CUDA(cudaEventCreate(&begin));
          CUDA(cudaEventCreate(&end));
          CUDA(cudaEventRecord(begin, stream));
          const uint32_t threads = std::max(32u, units);
          if (protocol == kLl) {
            again_kernel<Ll, ranks><<<1, threads, 0, stream>>>(args, units);
          } else {
            again_kernel<Sentinel, ranks><<<1, threads, 0, stream>>>(args, units);
          }
          CUDA(cudaEventRecord(end, stream));
          CUDA(cudaStreamSynchronize(stream));
          float ms;
          CUDA(cudaEventElapsedTime(&ms, begin, end));
          us[rank].push_back(1e3f * ms / kIterations);
        }
        world.gate.arrive_and_wait();
        if (rank == 0) {
          auto& t = us[0];
          std::sort(t.begin(), t.end());
          std::printf("in kernel, %d ranks, %s, %u B: %.3f us (min %.3f, max %.3f), %.2f x bound\n", ranks,
                      protocol == kLl ? "LL" : "sentinel", bytes, t[10], t[0], t[19],
                      t[10] / (1e-3 * (2 * load + store)));
          std::fflush(stdout);
        }
        world.gate.arrive_and_wait();
      }
    }
  });
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  // A kernel that is loaded late waits for the running ones, which wait for it; streams that share a queue wait too.
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
  const int n = std::atoi(argv[2]);
  if (std::strcmp(argv[1], "check") == 0) return check(n);
  if (std::strcmp(argv[1], "graph") == 0) return graph(n);
  return n == 2 ? in_kernel<2>() : n == 4 ? in_kernel<4>() : in_kernel<8>();
}
