// The memory model's classic shapes on one GPU, with the accesses that the protocols use: relaxed 32-bit words of
// system scope, without and with fences. tests/test_ptx_model.py says of the same shapes what the model allows.
//   nvcc -std=c++20 -O3 -arch=sm_90 -Icsrc/include tests/cpp/litmus.cu -o build/memory_litmus
//   build/memory_litmus [launches per shape, default 200]
// Prints how often each shape's weak outcome was seen. Exit status 1 where a forbidden one was, 2 where an instance did
// not run. Shapes across GPUs need a program with peer mappings.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "cuda_or_exit.h"
#include "llcoll/device_memory.cuh"

using namespace llcoll;

namespace {

enum Shape { kMp, kSb, kLb, kIriw, kCoRr, kTwoPlusTwoW, kNumShapes };
enum Fence { kNone, kAcqRel, kSc, kNumFences };
constexpr const char* kShapeNames[] = {"MP", "SB", "LB", "IRIW", "CoRR", "2+2W"};
constexpr const char* kFenceNames[] = {"none", "fence.acq_rel.sys", "fence.sc.sys"};
constexpr int kRoles = 4;  // blocks; a shape with two threads leaves the others idle
constexpr int kThreads = 256;
constexpr int kPerThread = 64;
constexpr int kInstances = kThreads * kPerThread;
constexpr uint32_t kUnread = ~0u;

// One instance: two locations on lines of their own, and what each role read.
struct alignas(128) Location {
  uint32_t word;
};
struct Outcome {
  uint32_t read[kRoles][2];
};

template <Fence fence>
__device__ void order() {
  if constexpr (fence == kAcqRel) ptx::fence_acq_rel_sys();
  if constexpr (fence == kSc) __threadfence_system();  // CUDA defines it as the sequentially consistent fence
}

__device__ uint32_t load(const Location* at) { return ptx::load_relaxed_4(&at->word); }
__device__ void store(Location* at, uint32_t value) { ptx::store_relaxed_4(&at->word, value); }

// Role r of all instances; every block goes through them in the same order, so that they meet. `arrived` starts all
// blocks together: there are few enough to be resident.
template <Shape shape, Fence fence>
__global__ void run(Location* xs, Location* ys, Outcome* outcomes, uint32_t* arrived) {
  const int role = blockIdx.x;
  __syncthreads();
  if (threadIdx.x == 0) {
    atomicAdd(arrived, 1);
    while (ptx::load_relaxed_4(arrived) < kRoles) {
    }
  }
  __syncthreads();
  for (int i = 0; i < kPerThread; ++i) {
    const int instance = i * kThreads + (threadIdx.x + (role & 1) * i * 37) % kThreads;
    Location* x = xs + instance;
    Location* y = ys + instance;
    uint32_t* read = outcomes[instance].read[role];
    if constexpr (shape == kMp) {
      if (role == 0) store(x, 1), order<fence>(), store(y, 1);
      if (role == 1) read[0] = load(y), order<fence>(), read[1] = load(x);
    } else if constexpr (shape == kSb) {
      if (role == 0) store(x, 1), order<fence>(), read[0] = load(y);
      if (role == 1) store(y, 1), order<fence>(), read[0] = load(x);
    } else if constexpr (shape == kLb) {
      if (role == 0) read[0] = load(x), order<fence>(), store(y, 1);
      if (role == 1) read[0] = load(y), order<fence>(), store(x, 1);
    } else if constexpr (shape == kIriw) {
      if (role == 0) store(x, 1);
      if (role == 1) store(y, 1);
      if (role == 2) read[0] = load(x), order<fence>(), read[1] = load(y);
      if (role == 3) read[0] = load(y), order<fence>(), read[1] = load(x);
    } else if constexpr (shape == kCoRr) {
      if (role == 0) store(x, 1);
      if (role == 1) read[0] = load(x), read[1] = load(x);
    } else {
      if (role == 0) store(x, 1), order<fence>(), store(y, 2);
      if (role == 1) store(y, 1), order<fence>(), store(x, 2);
    }
  }
}

bool is_weak(Shape shape, const Outcome& o, uint32_t x, uint32_t y) {
  const auto& r = o.read;
  switch (shape) {
    case kMp:
      return r[1][0] == 1 && r[1][1] == 0;
    case kSb:
      return r[0][0] == 0 && r[1][0] == 0;
    case kLb:
      return r[0][0] == 1 && r[1][0] == 1;
    case kIriw:
      return r[2][0] == 1 && r[2][1] == 0 && r[3][0] == 1 && r[3][1] == 0;
    case kCoRr:
      return r[1][0] == 1 && r[1][1] == 0;
    default:
      return x == 1 && y == 1;
  }
}

// What the axioms say, as tests/test_ptx_model.py computes it: SB, IRIW and 2+2W need the stronger fence.
bool is_forbidden(Shape shape, Fence fence) {
  if (shape == kCoRr) return true;
  if (shape == kMp || shape == kLb) return fence != kNone;
  return fence == kSc;
}

template <Shape shape, Fence fence>
int measure(int launches) {
  Location *xs, *ys;
  Outcome* outcomes;
  uint32_t* arrived;
  CUDA(cudaMalloc(&xs, kInstances * sizeof(Location)));
  CUDA(cudaMalloc(&ys, kInstances * sizeof(Location)));
  CUDA(cudaMalloc(&outcomes, kInstances * sizeof(Outcome)));
  CUDA(cudaMalloc(&arrived, sizeof(uint32_t)));
  std::vector<Location> x(kInstances), y(kInstances);
  std::vector<Outcome> seen(kInstances);
  long long weak = 0, missing = 0;
  for (int launch = 0; launch < launches; ++launch) {
    CUDA(cudaMemset(xs, 0, kInstances * sizeof(Location)));
    CUDA(cudaMemset(ys, 0, kInstances * sizeof(Location)));
    CUDA(cudaMemset(outcomes, 0xFF, kInstances * sizeof(Outcome)));
    CUDA(cudaMemset(arrived, 0, sizeof(uint32_t)));
    run<shape, fence><<<kRoles, kThreads>>>(xs, ys, outcomes, arrived);
    CUDA(cudaGetLastError());
    CUDA(cudaMemcpy(x.data(), xs, kInstances * sizeof(Location), cudaMemcpyDeviceToHost));
    CUDA(cudaMemcpy(y.data(), ys, kInstances * sizeof(Location), cudaMemcpyDeviceToHost));
    CUDA(cudaMemcpy(seen.data(), outcomes, kInstances * sizeof(Outcome), cudaMemcpyDeviceToHost));
    for (int i = 0; i < kInstances; ++i) {
      weak += is_weak(shape, seen[i], x[i].word, y[i].word);
      missing += x[i].word == 0 || (shape == kMp && seen[i].read[1][1] == kUnread);
    }
  }
  const bool forbidden = is_forbidden(shape, fence);
  std::printf("%-5s %-18s weak outcome in %lld of %lld runs: %s\n", kShapeNames[shape], kFenceNames[fence], weak,
              static_cast<long long>(launches) * kInstances,
              !forbidden  ? "allowed"
              : weak == 0 ? "forbidden, not seen"
                          : "FORBIDDEN, SEEN");
  std::fflush(stdout);
  CUDA(cudaFree(xs));
  CUDA(cudaFree(ys));
  CUDA(cudaFree(outcomes));
  CUDA(cudaFree(arrived));
  if (missing != 0) return 2;
  return forbidden && weak != 0 ? 1 : 0;
}

template <Shape shape>
int measure_all(int launches) {
  int status = measure<shape, kNone>(launches);
  if constexpr (shape != kCoRr) {
    for (const int one : {measure<shape, kAcqRel>(launches), measure<shape, kSc>(launches)}) {
      if (one > status) status = one;
    }
  }
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  const int launches = argc > 1 ? std::atoi(argv[1]) : 200;
  int status = 0;
  for (const int one :
       {measure_all<kMp>(launches), measure_all<kSb>(launches), measure_all<kLb>(launches),
        measure_all<kIriw>(launches), measure_all<kCoRr>(launches), measure_all<kTwoPlusTwoW>(launches)}) {
    if (one > status) status = one;
  }
  std::printf("%s\n", status == 0 ? "all ok" : status == 1 ? "FAILED: a forbidden outcome" : "FAILED: not run");
  return status;
}
