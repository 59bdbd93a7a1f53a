// Looks for torn lines: what LL128 relies on, and no memory model promises. Writers add 1 to all 32 floats of a line in
// one warp instruction per 4 lines; readers look at whole lines all the while. A read in which some element is behind
// the first is a torn line that LL128 would take for whole; one in which some element is ahead is torn the harmless
// way.
//   nvcc -std=c++20 -O3 -arch=sm_90 -Icsrc/include tests/cpp/ll128_litmus.cu -o ll128_litmus
//   ll128_litmus [seconds per number of writers, default 3]
// Exit status 1 where a line was behind. On one GPU; over NVLink it needs a program with peer mappings.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>

#include "cuda_or_exit.h"
#include "llcoll/device_memory.cuh"

using namespace llcoll;

namespace {

constexpr int kThreads = 256;
constexpr int kLinesPerBlock = kThreads / kLineParts;
constexpr int kRounds = 2000;  // additions per writer and line; exact in float32

struct Counts {
  unsigned long long reads, behind, ahead, between;
};

// Blocks [0, num_writers * num_tiles) add, the same number after them read until they saw the last addition.
__global__ void litmus(LinePart* lines, int num_writers, int num_tiles, float last, Counts* counts) {
  const int tile = blockIdx.x % num_tiles;
  const int part = threadIdx.x % kLineParts;
  LinePart* line = lines + (tile * kLinesPerBlock + threadIdx.x / kLineParts) * kLineParts;
  if (int(blockIdx.x) < num_writers * num_tiles) {
    const uint32_t one = __float_as_uint(1.0f);
    for (int round = 0; round < kRounds; ++round) {
      ptx::add_16<LineAdd::kFloat32>(line + part, LinePart{{one, one, one, one}});
    }
    return;
  }
  Counts own{};
  for (float seen = 0; seen < last;) {
    uint64_t low, high;
    ptx::load_relaxed_16(line + part, low, high);
    const float values[4] = {__uint_as_float(uint32_t(low)), __uint_as_float(uint32_t(low >> 32)),
                             __uint_as_float(uint32_t(high)), __uint_as_float(uint32_t(high >> 32))};
    seen = __shfl_sync(0xFFFFFFFFu, values[0], 0, kLineParts);
    own.reads += 1;
    own.between += seen > 0 && seen < last;
    for (const float value : values) {
      own.behind += value < seen;
      own.ahead += value > seen;
    }
    // A warp holds four lines; it goes on until all are done.
    seen = __all_sync(0xFFFFFFFFu, seen >= last) ? last : 0;
  }
  atomicAdd(&counts->reads, own.reads);
  atomicAdd(&counts->behind, own.behind);
  atomicAdd(&counts->ahead, own.ahead);
  atomicAdd(&counts->between, own.between);
}

}  // namespace

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 3;
  cudaDeviceProp properties;
  CUDA(cudaGetDeviceProperties(&properties, 0));
  if (properties.major < 9) {
    std::printf("LL128 needs sm_90, this is sm_%d%d\n", properties.major, properties.minor);
    return 2;
  }
  Counts* counts;
  CUDA(cudaMallocManaged(&counts, sizeof(Counts)));
  cudaEvent_t begin, end;
  CUDA(cudaEventCreate(&begin));
  CUDA(cudaEventCreate(&end));
  bool bad = false;
  for (const int num_writers : {2, 4, 8}) {
    // All blocks must be resident: readers wait for writers.
    const int num_tiles = properties.multiProcessorCount * 4 / (2 * num_writers);
    LinePart* lines;
    CUDA(cudaMalloc(&lines, num_tiles * kLinesPerBlock * 128));
    *counts = {};
    float ms = 0;
    int launches = 0;
    CUDA(cudaEventRecord(begin));
    while (ms < 1e3 * seconds) {
      CUDA(cudaMemset(lines, 0, num_tiles * kLinesPerBlock * 128));
      litmus<<<2 * num_writers * num_tiles, kThreads>>>(lines, num_writers, num_tiles, float(num_writers) * kRounds,
                                                        counts);
      CUDA(cudaGetLastError());
      CUDA(cudaEventRecord(end));
      CUDA(cudaEventSynchronize(end));
      CUDA(cudaEventElapsedTime(&ms, begin, end));
      ++launches;
    }
    std::printf(
        "%d writers: %d launches of %d lines, %.1f million thread-reads, %.1f million of them while additions "
        "went on: %llu elements behind, %llu ahead\n",
        num_writers, launches, num_tiles * kLinesPerBlock, counts->reads * 1e-6, counts->between * 1e-6, counts->behind,
        counts->ahead);
    bad |= counts->behind != 0 || counts->between == 0;
    CUDA(cudaFree(lines));
  }
  return bad ? 1 : 0;
}
