// What the CPU and the GPU build of the examples share: ops over torch's stable ABI.
//
// `buffers`: int64 CPU tensor, the address of each rank's buffer as mapped here. `shape`: what each block gets from
// each rank per epoch (elements of 16 bytes) and the number of blocks; the same on every rank.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <stdexcept>

#include "bias_gelu.h"

namespace examples {

using llcoll::LlMode;
using torch::stable::Tensor;

constexpr uint64_t kTimeoutNs = 20'000'000'000;

inline llcoll::BufferShape shape_of(int64_t mode, int64_t num_ranks, int64_t per_block, int64_t num_blocks) {
  return llcoll::make_buffer_shape(static_cast<LlMode>(mode), static_cast<uint32_t>(per_block), sizeof(Vec4),
                                   static_cast<int>(num_ranks), static_cast<uint32_t>(num_blocks), 2);
}
inline int64_t buffer_bytes(int64_t mode, int64_t num_ranks, int64_t per_block, int64_t num_blocks) {
  return static_cast<int64_t>(shape_of(mode, num_ranks, per_block, num_blocks).bytes());
}

struct Call {
  llcoll::LlArgs args;
  Vec4* data;
  const Vec4* bias;
  uint32_t count;  // elements of 16 bytes
  uint32_t width;  // of the bias; 0: plain all-reduce
  uint32_t per_channel;
};

inline Call make_call(const Tensor& data, const Tensor& bias, const Tensor& buffers, int64_t rank, int64_t mode,
                      int64_t per_block, int64_t num_blocks) {
  if (data.numel() % 4 != 0 || bias.numel() % 4 != 0) throw std::runtime_error("lengths must be multiples of 4");
  const auto* addresses = static_cast<const int64_t*>(buffers.data_ptr());
  char* memory[llcoll::kMaxRanks] = {};
  for (int64_t r = 0; r < buffers.numel(); ++r) memory[r] = reinterpret_cast<char*>(addresses[r]);
  Call call{};
  call.args = llcoll::make_ll_args(shape_of(mode, buffers.numel(), per_block, num_blocks), static_cast<int>(rank),
                                   memory, kTimeoutNs);
  call.data = static_cast<Vec4*>(data.data_ptr());
  call.bias = static_cast<const Vec4*>(bias.data_ptr());
  call.count = static_cast<uint32_t>(data.numel() / 4);
  call.width = static_cast<uint32_t>(bias.numel() / 4);
  call.per_channel = (call.count + static_cast<uint32_t>(num_blocks) - 1) / static_cast<uint32_t>(num_blocks);
  return call;
}

// One block's share of a call.
template <class Buffer>
LLC_FN void run_block(Buffer& buffer, const Call& call, uint32_t block) {
  const uint32_t first = block * call.per_channel;
  if (first >= call.count) return;
  const uint32_t count = call.count - first < call.per_channel ? call.count - first : call.per_channel;
  if (call.width == 0) {
    one_shot_all_reduce(buffer, call.data + first, count);
  } else {
    all_reduce_bias_gelu(buffer, call.data + first, call.bias, first, count, call.width);
  }
}

}  // namespace examples

// The first of the two libraries that is loaded defines the ops: see load() in run.py.
#define EXAMPLES_LIBRARY(name)                                                                          \
  STABLE_TORCH_LIBRARY(name, m)                                                                         \
  {                                                                                                     \
    m.def("buffer_bytes(int mode, int num_ranks, int per_block, int num_blocks) -> int");               \
    m.def("init_(Tensor(a!) buffer, int mode, int num_ranks, int per_block, int num_blocks) -> ()");    \
    m.def(                                                                                              \
        "all_reduce_(Tensor(a!) data, Tensor bias, Tensor buffers, int rank, int mode, int per_block, " \
        "int num_blocks) -> ()");                                                                       \
  }                                                                                                     \
  STABLE_TORCH_LIBRARY_IMPL(name, CompositeExplicitAutograd, m)                                         \
  {                                                                                                     \
    m.impl("buffer_bytes", TORCH_BOX(&examples::buffer_bytes));                                         \
    m.impl("init_", TORCH_BOX(&examples::init));                                                        \
    m.impl("all_reduce_", TORCH_BOX(&examples::all_reduce));                                            \
  }
