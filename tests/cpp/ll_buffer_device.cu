// Every mode, group and form of LLBuffer as nvcc sees it: compiled, not run (tests/test_ll_buffer.py).
#include "llcoll/ll_device.cuh"

namespace {

using namespace llcoll;

template <class Buffer>
__device__ void use(Buffer& buffer, float* x) {
  auto same = [](auto v) { return v; };
  ll_all_reduce<4, float>(
      buffer, 10, [&](uint32_t i) { return x[i]; }, same, [](float a, float b) { return a + b; },
      [&](uint32_t i, float sum) { x[i] = sum; });
  ll_all_gather<4, __half>(
      buffer, 10, [](uint32_t i) { return __float2half(float(i)); },
      [&](int, uint32_t i, __half h) { x[i] = __half2float(h); });
  ll_all_to_all<float4>(
      buffer, 10,
      [](int, uint32_t i) {
        return float4{float(i), 1, 2, 3};
      },
      [&](int, uint32_t i, float4 v) { x[i] = v.x; });
  buffer.barrier();
  buffer.template reset_range<double>(0, 4, 1);
  buffer.advance_epoch(true);
}

template <LlMode mode, bool multicast>
__global__ void by_block(const __grid_constant__ LlArgs args, float* x) {
  BlockBuffer<mode, multicast> buffer({args.wait}, {}, args.buffer);
  use(buffer, x);
}
template <LlMode mode, bool multicast>
__global__ void by_warp(const __grid_constant__ LlArgs args, float* x) {
  WarpBuffer<mode, multicast> buffer({args.wait}, {}, args.buffer);
  use(buffer, x);
}

// docs/ll_buffer.md
__global__ void sum(const __grid_constant__ LlArgs args, float* data, uint32_t count) {
  BlockBuffer<LlMode::kLl> buffer({args.wait}, {}, args.buffer);
  const uint32_t i = threadIdx.x;
  if (i < count) buffer.bcast(buffer.rank() * count + i, data[i]);
  if (i < count) {
    data[i] = buffer.recv_reduce<8, float>(
        i, buffer.num_ranks(), count, [](float x) { return x; }, [](float a, float b) { return a + b; }, 0);
  }
  buffer.advance_epoch(true);
}

}  // namespace

void launch(const LlArgs& args, float* x) {
  by_block<LlMode::kLl, false><<<1, 64>>>(args, x);
  by_block<LlMode::kLl, true><<<1, 64>>>(args, x);
  by_block<LlMode::kLlNarrow, true><<<1, 64>>>(args, x);
  by_block<LlMode::kSentinel, false><<<1, 64>>>(args, x);
  by_warp<LlMode::kLlNarrow, false><<<1, 64>>>(args, x);
  by_warp<LlMode::kSentinel, true><<<1, 64>>>(args, x);
  sum<<<1, 64>>>(args, x, 64);
}
