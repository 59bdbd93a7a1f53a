// Looks for torn lines: what LL128 relies on, and no memory model promises. Writers add 1 to all 32 floats of a line in
// one warp instruction per 4 lines; readers look at whole lines all the while. A read in which some element is behind
// the first is a torn line that LL128 would take for whole; one in which some element is ahead is torn the harmless
// way. The second part does the same over more lines than the L2 holds, each used once, as a large message does: there
// the parts of a line may come from memory one by one. What a second read finds, behind the first, is counted apart.
//   nvcc -std=c++20 -O3 -arch=sm_90 -Icsrc/include tests/cpp/ll128_litmus.cu -o ll128_litmus
//   ll128_litmus [seconds per test, default 3] [ranks]
// With `ranks`, each has lines of its own on its GPU and adds to everyone's, at the same time, over peer mappings
// (NVLink); ranks beyond the number of GPUs share them. Without: one GPU, with 2, 4 and 8 writers. Exit status 1 where
// a line was behind, 2 where it cannot run.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "cuda_or_exit.h"
#include "llcoll/device_memory.cuh"

using namespace llcoll;

namespace {

constexpr int kThreads = 256;
constexpr int kLinesPerBlock = kThreads / kLineParts;
constexpr int kRounds = 2000;  // additions per writer and line; exact in float32
constexpr int kMostRanks = 8;
constexpr int kBlocksPerSm = 4;

struct Counts {
  unsigned long long reads, behind, ahead, between, again;
};

struct Owners {
  LinePart* lines[kMostRanks];
};

// Blocks [0, num_writers * num_tiles) add to the lines of owner block / num_tiles % num_owners; the same number after
// them read the rank's own until they saw the last addition.
__global__ void litmus(Owners owners, int num_owners, int self, int num_writers, int num_tiles, float last,
                       Counts* counts) {
  const int tile = blockIdx.x % num_tiles;
  const int part = threadIdx.x % kLineParts;
  const int in_lines = (tile * kLinesPerBlock + threadIdx.x / kLineParts) * kLineParts + part;
  const int writer = blockIdx.x / num_tiles;
  if (writer < num_writers) {
    LinePart* const line = owners.lines[(self + writer) % num_owners] + in_lines;
    const uint32_t one = __float_as_uint(1.0f);
    for (int round = 0; round < kRounds; ++round) {
      ptx::add_16<LineAdd::kFloat32>(line, LinePart{{one, one, one, one}});
    }
    return;
  }
  LinePart* const line = owners.lines[self] + in_lines;
  Counts own{};
  for (float seen = 0; seen < last;) {
    uint64_t low, high;
    ptx::load_relaxed_16(line, low, high);
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

struct Rank {
  int device;
  cudaStream_t stream;
  LinePart* lines;
  Counts* counts;
};

// Every GPU of the ranks sees every other's memory.
void map_peers(int num_devices) {
  for (int device = 0; device < num_devices; ++device) {
    CUDA(cudaSetDevice(device));
    for (int peer = 0; peer < num_devices; ++peer) {
      if (peer == device) continue;
      int atomics = 0;
      CUDA(cudaDeviceGetP2PAttribute(&atomics, cudaDevP2PAttrNativeAtomicSupported, device, peer));
      if (!atomics) {
        std::printf("GPU %d has no native atomics on GPU %d: LL128 refuses such a pair\n", device, peer);
        std::exit(2);
      }
      CUDA(cudaDeviceEnablePeerAccess(peer, 0));
    }
  }
}

// `num_owners` ranks, each with `writers_each` sets of writers: over all ranks that many per line.
bool run(int num_owners, int writers_each, int num_devices, int num_sms, double seconds) {
  const int ranks_per_device = (num_owners + num_devices - 1) / num_devices;
  // All blocks must be resident: readers wait for writers.
  const int num_tiles = num_sms * kBlocksPerSm / (2 * writers_each * ranks_per_device);
  const int num_lines = num_tiles * kLinesPerBlock;
  const size_t num_bytes = size_t(num_lines) * kLineParts * sizeof(LinePart);
  std::vector<Rank> ranks(num_owners);
  Owners owners{};
  for (int r = 0; r < num_owners; ++r) {
    ranks[r].device = r % num_devices;
    CUDA(cudaSetDevice(ranks[r].device));
    CUDA(cudaStreamCreateWithFlags(&ranks[r].stream, cudaStreamNonBlocking));
    CUDA(cudaMalloc(&ranks[r].lines, num_bytes));
    CUDA(cudaMalloc(&ranks[r].counts, sizeof(Counts)));
    CUDA(cudaMemset(ranks[r].counts, 0, sizeof(Counts)));
    owners.lines[r] = ranks[r].lines;
  }
  cudaEvent_t begin, end;
  CUDA(cudaSetDevice(ranks[0].device));
  CUDA(cudaEventCreate(&begin));
  CUDA(cudaEventCreate(&end));
  float ms = 0;
  int launches = 0;
  CUDA(cudaEventRecord(begin, ranks[0].stream));
  while (ms < 1e3 * seconds) {
    for (const Rank& rank : ranks) {
      CUDA(cudaSetDevice(rank.device));
      CUDA(cudaMemsetAsync(rank.lines, 0, num_bytes, rank.stream));
    }
    for (const Rank& rank : ranks) CUDA(cudaStreamSynchronize(rank.stream));  // before anybody adds
    for (int r = 0; r < num_owners; ++r) {
      CUDA(cudaSetDevice(ranks[r].device));
      litmus<<<2 * writers_each * num_tiles, kThreads, 0, ranks[r].stream>>>(
          owners, num_owners, r, writers_each, num_tiles, float(writers_each) * kRounds, ranks[r].counts);
      CUDA(cudaGetLastError());
    }
    for (const Rank& rank : ranks) CUDA(cudaStreamSynchronize(rank.stream));
    CUDA(cudaSetDevice(ranks[0].device));
    CUDA(cudaEventRecord(end, ranks[0].stream));
    CUDA(cudaEventSynchronize(end));
    CUDA(cudaEventElapsedTime(&ms, begin, end));
    ++launches;
  }
  Counts all{};
  bool quiet = false;
  for (const Rank& rank : ranks) {
    Counts one{};
    CUDA(cudaSetDevice(rank.device));
    CUDA(cudaMemcpy(&one, rank.counts, sizeof(Counts), cudaMemcpyDeviceToHost));
    all.reads += one.reads;
    all.behind += one.behind;
    all.ahead += one.ahead;
    all.between += one.between;
    quiet |= one.between == 0;  // an owner that saw no addition under way has shown nothing
    CUDA(cudaFree(rank.lines));
    CUDA(cudaFree(rank.counts));
    CUDA(cudaStreamDestroy(rank.stream));
  }
  std::printf(
      "%d ranks on %d GPUs, %d writers a line: %d launches of %d lines a rank, %.1f million thread-reads, %.1f million "
      "of them while additions went on: %llu elements behind, %llu ahead\n",
      num_owners, num_owners < num_devices ? num_owners : num_devices, writers_each, launches, num_lines,
      double(all.reads) * 1e-6, double(all.between) * 1e-6, all.behind, all.ahead);
  return all.behind == 0 && !quiet;
}

// Tile t of num_tiles takes every num_tiles-th group of kLinesPerBlock lines: num_writers blocks add 1 to each, one
// more block waits for the sum in line after line.
__global__ void cold(LinePart* lines, int num_writers, int num_tiles, int num_steps, Counts* counts) {
  const int tile = blockIdx.x % num_tiles;
  const int part = threadIdx.x % kLineParts;
  LinePart* first = lines + threadIdx.x / kLineParts * kLineParts;
  const uint32_t one = __float_as_uint(1.0f);
  Counts own{};
  for (int step = 0; step < num_steps; ++step) {
    LinePart* line = first + (size_t(step) * num_tiles + tile) * kLinesPerBlock * kLineParts;
    if (int(blockIdx.x) < num_writers * num_tiles) {
      ptx::add_16<LineAdd::kFloat32>(line + part, LinePart{{one, one, one, one}});
      continue;
    }
    auto read = [&](float(&values)[4]) {
      uint64_t low, high;
      ptx::load_relaxed_16(line + part, low, high);
      values[0] = __uint_as_float(uint32_t(low));
      values[1] = __uint_as_float(uint32_t(low >> 32));
      values[2] = __uint_as_float(uint32_t(high));
      values[3] = __uint_as_float(uint32_t(high >> 32));
      return __shfl_sync(0xFFFFFFFFu, values[0], 0, kLineParts);
    };
    float values[4];
    float seen = 0;
    bool done = false;
    // Each line counts at the poll that finds it whole, though the warp goes on for its other lines.
    while (!__all_sync(0xFFFFFFFFu, done)) {
      seen = read(values);
      own.reads += 1;
      own.between += seen > 0 && seen < num_writers;
      if (!done && seen >= num_writers) {
        for (const float value : values) own.behind += value < seen;
        done = true;
      }
    }
    read(values);
    for (const float value : values) own.again += value < num_writers;
  }
  atomicAdd(&counts->reads, own.reads);
  atomicAdd(&counts->behind, own.behind);
  atomicAdd(&counts->between, own.between);
  atomicAdd(&counts->again, own.again);
}

bool try_cold(int num_writers, int num_sms, double seconds) {
  constexpr size_t kBytes = size_t{256} << 20;
  const int num_tiles = num_sms * kBlocksPerSm / (num_writers + 1);
  const int num_steps = int(kBytes / 128 / kLinesPerBlock / num_tiles);
  LinePart* lines;
  CUDA(cudaMalloc(&lines, kBytes));
  Counts* counts;
  CUDA(cudaMallocManaged(&counts, sizeof(Counts)));
  cudaEvent_t begin, end;
  CUDA(cudaEventCreate(&begin));
  CUDA(cudaEventCreate(&end));
  *counts = {};
  float ms = 0;
  int launches = 0;
  CUDA(cudaEventRecord(begin));
  while (ms < 1e3 * seconds) {
    CUDA(cudaMemset(lines, 0, kBytes));
    cold<<<(num_writers + 1) * num_tiles, kThreads>>>(lines, num_writers, num_tiles, num_steps, counts);
    CUDA(cudaGetLastError());
    CUDA(cudaEventRecord(end));
    CUDA(cudaEventSynchronize(end));
    CUDA(cudaEventElapsedTime(&ms, begin, end));
    ++launches;
  }
  std::printf(
      "%d writers, cold lines: %d launches of %d lines: %llu elements behind at the poll that found the sum, "
      "%llu at the read after it\n",
      num_writers, launches, num_steps * num_tiles * kLinesPerBlock, counts->behind, counts->again);
  const bool good = counts->behind == 0;
  CUDA(cudaFree(lines));
  CUDA(cudaFree(counts));
  return good;
}

}  // namespace

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 3;
  const int num_ranks = argc > 2 ? std::atoi(argv[2]) : 1;
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);  // a kernel loaded while another waits for it may wait itself
  int num_devices = 0;
  CUDA(cudaGetDeviceCount(&num_devices));
  if (num_ranks < 1 || num_ranks > kMostRanks) {
    std::printf("ranks: %s is not 1 to %d\n", argv[2], kMostRanks);
    return 2;
  }
  if (num_devices > num_ranks) num_devices = num_ranks;
  int num_sms = 1 << 20;
  for (int device = 0; device < num_devices; ++device) {
    cudaDeviceProp properties;
    CUDA(cudaGetDeviceProperties(&properties, device));
    if (properties.major < 9) {
      std::printf("LL128 needs sm_90, GPU %d is sm_%d%d\n", device, properties.major, properties.minor);
      return 2;
    }
    if (properties.multiProcessorCount < num_sms) num_sms = properties.multiProcessorCount;
  }
  map_peers(num_devices);
  bool good = true;
  if (num_ranks > 1) return run(num_ranks, num_ranks, num_devices, num_sms, seconds) ? 0 : 1;
  for (const int num_writers : {2, 4, 8}) good &= run(1, num_writers, num_devices, num_sms, seconds);
  for (const int num_writers : {2, 4, 8}) good &= try_cold(num_writers, num_sms, seconds);
  return good ? 0 : 1;
}
