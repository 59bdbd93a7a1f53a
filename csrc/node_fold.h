// What happens to elements between two nodes, for one element type: widening, and combining in node order with one
// rounding. Scalar code over arrays: compilers turn the loops into vectors. One source for CPU and CUDA.
#pragma once

#include <cstddef>

#include "llcoll/reduce.h"

namespace llcoll {
inline namespace LLC_ISA {

template <int bytes>
struct BitsOf;
template <>
struct BitsOf<1> {
  using type = uint8_t;
};
template <>
struct BitsOf<2> {
  using type = uint16_t;
};
template <>
struct BitsOf<4> {
  using type = uint32_t;
};
template <>
struct BitsOf<8> {
  using type = uint64_t;
};

// One element of Type: its bits in memory, and its accumulator.
template <class Type>
struct Element {
  using Bits = typename BitsOf<element_bytes(Type::kDType)>::type;
  using Word = typename Type::Word;
  using Acc = typename Type::template Acc<Word>;
  static constexpr bool kNarrow = is_floating(Type::kDType) && sizeof(Bits) < 4;

  static LLC_FN Acc load(Bits bits) { return Type::template unpack<Word>(Word{bits}, 0); }
  static LLC_FN Bits store(Acc acc) { return static_cast<Bits>(Type::template pack<Word>(acc, 0)); }
};

// Calls f(Type{}) for the type of `dtype`.
template <class F>
void with_element_type(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kFloat32:
      return f(Float32{});
    case DType::kFloat64:
      return f(Float64{});
    case DType::kFloat16:
      return f(Float16{});
    case DType::kBFloat16:
      return f(BFloat16{});
    case DType::kFloat8E4M3:
      return f(Float8E4M3{});
    case DType::kFloat8E5M2:
      return f(Float8E5M2{});
    case DType::kInt8:
      return f(Int8{});
    case DType::kUInt8:
      return f(UInt8{});
    case DType::kInt32:
      return f(Int32{});
    case DType::kInt64:
      return f(Int64{});
    case DType::kBool:
      return f(Bool{});
  }
}

}  // namespace LLC_ISA
}  // namespace llcoll
