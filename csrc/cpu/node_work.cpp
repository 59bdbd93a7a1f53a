// The CPU's part of nodes.h: loops over host memory.
#include <algorithm>
#include <cstring>

#include "cpu/isa.h"
#include "node_fold.h"
#include "nodes.h"

namespace llcoll {
namespace {

constexpr size_t kBlock = 256;  // elements whose accumulators stay in the first cache

// User memory may be unaligned: elements go through memcpy.
template <class T>
T get(const void* data, size_t i) {
  T value;
  std::memcpy(&value, static_cast<const char*>(data) + i * sizeof(T), sizeof(T));
  return value;
}
template <class T>
void put(void* data, size_t i, T value) {
  std::memcpy(static_cast<char*>(data) + i * sizeof(T), &value, sizeof(T));
}

template <class Type>
void widen_as(const void* in, void* out, size_t count) {
  using E = Element<Type>;
  for (size_t i = 0; i < count; ++i) put<float>(out, i, E::load(get<typename E::Bits>(in, i)));
}

// Part: what lies in memory, Load: how it becomes an accumulator of Type.
template <class Type, class Part, class Load>
void fold_as(ReduceOp op, const void* parts, size_t stride, int num_parts, size_t count, int num_ranks, void* out,
             Load load) {
  using E = Element<Type>;
  const auto* first = static_cast<const char*>(parts);
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const size_t n = std::min(kBlock, count - begin);
    typename E::Acc acc[kBlock];
    for (size_t i = 0; i < n; ++i) acc[i] = load(get<Part>(first, begin + i));
    for (int p = 1; p < num_parts; ++p) {
      const void* part = first + static_cast<size_t>(p) * stride * sizeof(Part);
      for (size_t i = 0; i < n; ++i) acc[i] = combine<Type>(op, acc[i], load(get<Part>(part, begin + i)));
    }
    for (size_t i = 0; i < n; ++i) {
      put<typename E::Bits>(out, begin + i, E::store(finish<Type>(op, acc[i], num_ranks)));
    }
  }
}

void widen(DType dtype, const void* in, void* out, size_t count, void*) {
  const DefaultFloatMode mode;
  with_element_type(dtype, [&](auto type) {
    if constexpr (Element<decltype(type)>::kNarrow) widen_as<decltype(type)>(in, out, count);
  });
}

void fold(DType dtype, bool wide, ReduceOp op, const void* parts, size_t stride, int num_parts, size_t count,
          int num_ranks, void* out, void*) {
  const DefaultFloatMode mode;
  with_element_type(dtype, [&](auto type) {
    using Type = decltype(type);
    using E = Element<Type>;
    if constexpr (E::kNarrow) {
      if (wide) {
        return fold_as<Type, float>(op, parts, stride, num_parts, count, num_ranks, out, [](float x) { return x; });
      }
    }
    fold_as<Type, typename E::Bits>(op, parts, stride, num_parts, count, num_ranks, out,
                                    [](typename E::Bits bits) { return E::load(bits); });
  });
}

void copy(void* out, const void* in, size_t bytes, void*) {
  if (bytes != 0 && out != in) std::memmove(out, in, bytes);
}

}  // namespace

const DeviceWork& device_work() {
  static constexpr DeviceWork work{widen, fold, copy};
  return work;
}

}  // namespace llcoll
