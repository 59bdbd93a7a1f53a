// The examples on the GPU: one CTA per block. Between calls there is nothing to do on the host, so they can be captured
// in CUDA graphs.
#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include "binding.h"
#include "llcoll/ll_device.cuh"

namespace examples {
namespace {

cudaStream_t current_stream(const Tensor& tensor) {
  void* stream = nullptr;
  aoti_torch_get_current_cuda_stream(tensor.get_device_index(), &stream);
  return static_cast<cudaStream_t>(stream);
}
void check(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}

void init(Tensor buffer, int64_t mode, int64_t num_ranks, int64_t per_block, int64_t num_blocks) {
  check(llcoll::init_ll_buffer_async(shape_of(mode, num_ranks, per_block, num_blocks), static_cast<LlMode>(mode),
                                     buffer.data_ptr(), current_stream(buffer)));
}

template <LlMode mode>
__global__ void __launch_bounds__(256) kernel(const __grid_constant__ Call call) {
  llcoll::BlockBuffer<mode> buffer({call.args.wait}, {}, call.args.buffer);
  run_block(buffer, call, blockIdx.x);
}

void all_reduce(Tensor data, Tensor bias, Tensor buffers, int64_t rank, int64_t mode, int64_t per_block,
                int64_t num_blocks) {
  const Call call = make_call(data, bias, buffers, rank, mode, per_block, num_blocks);
  const auto grid = static_cast<uint32_t>(num_blocks);
  if (mode == static_cast<int64_t>(LlMode::kSentinel)) {
    kernel<LlMode::kSentinel><<<grid, 256, 0, current_stream(data)>>>(call);
  } else {
    kernel<LlMode::kLl><<<grid, 256, 0, current_stream(data)>>>(call);
  }
  check(cudaGetLastError());
}

}  // namespace
}  // namespace examples

EXAMPLES_LIBRARY(llcoll_examples)
