// The GPU's part of nodes.h: element by element, a grid-stride loop each. Between nodes the network is the limit.
#include <algorithm>

#include "cuda/cuda_check.h"
#include "node_fold.h"
#include "nodes.h"

namespace llcoll {
namespace {

constexpr int kThreads = 256;
constexpr size_t kMaxBlocks = 512;

int num_blocks(size_t count) { return static_cast<int>(std::min((count + kThreads - 1) / kThreads, kMaxBlocks)); }

// Tensors start at a multiple of their element's size, so elements are loaded whole.
template <class Type>
__global__ void widen_kernel(const void* in, float* out, size_t count) {
  using E = Element<Type>;
  const auto* elements = static_cast<const typename E::Bits*>(in);
  for (size_t i = size_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += size_t{gridDim.x} * kThreads) {
    out[i] = E::load(elements[i]);
  }
}

template <class Type, bool wide>
__global__ void fold_kernel(ReduceOp op, const void* parts, size_t stride, int num_parts, size_t count, int num_ranks,
                            void* out) {
  using E = Element<Type>;
  auto load = [parts](size_t i) {
    if constexpr (wide) {
      return static_cast<const float*>(parts)[i];
    } else {
      return E::load(static_cast<const typename E::Bits*>(parts)[i]);
    }
  };
  for (size_t i = size_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += size_t{gridDim.x} * kThreads) {
    typename E::Acc acc = load(i);
    for (int p = 1; p < num_parts; ++p) acc = combine<Type>(op, acc, load(static_cast<size_t>(p) * stride + i));
    static_cast<typename E::Bits*>(out)[i] = E::store(finish<Type>(op, acc, num_ranks));
  }
}

void widen(DType dtype, const void* in, void* out, size_t count, void* stream) {
  if (count == 0) return;
  with_element_type(dtype, [&](auto type) {
    using Type = decltype(type);
    if constexpr (Element<Type>::kNarrow) {
      widen_kernel<Type>
          <<<num_blocks(count), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(in, static_cast<float*>(out), count);
    }
  });
  check_cuda(cudaGetLastError(), "widening for the other nodes");
}

void fold(DType dtype, bool wide, ReduceOp op, const void* parts, size_t stride, int num_parts, size_t count,
          int num_ranks, void* out, void* stream) {
  if (count == 0) return;
  with_element_type(dtype, [&](auto type) {
    using Type = decltype(type);
    const auto on = static_cast<cudaStream_t>(stream);
    if constexpr (Element<Type>::kNarrow) {
      if (wide) {
        fold_kernel<Type, true>
            <<<num_blocks(count), kThreads, 0, on>>>(op, parts, stride, num_parts, count, num_ranks, out);
        return;
      }
    }
    fold_kernel<Type, false>
        <<<num_blocks(count), kThreads, 0, on>>>(op, parts, stride, num_parts, count, num_ranks, out);
  });
  check_cuda(cudaGetLastError(), "combining the nodes' results");
}

void copy(void* out, const void* in, size_t bytes, void* stream) {
  if (bytes == 0 || out == in) return;
  check_cuda(cudaMemcpyAsync(out, in, bytes, cudaMemcpyDeviceToDevice, static_cast<cudaStream_t>(stream)),
             "copy for the other nodes");
}

}  // namespace

const DeviceWork& device_work() {
  static constexpr DeviceWork work{widen, fold, copy};
  return work;
}

}  // namespace llcoll
