// Element types: how a 4- or 8-byte word unpacks into accumulators and is rounded back, once, to nearest even.
// Every type defines
//   Word            uint32_t or uint64_t, the grain of the sentinel
//   kPerWord        elements in a word
//   Acc<W>          accumulator lanes for word lanes W (float32; float64; integers in two's complement)
//   unpack<W>(w, k), pack<W>(acc, k)   element k of each word; pack gives the element's bits in place
//   kNan            a word of canonical NaNs (0 for integers): also what a failed call leaves in the output
// All results that are NaN become one canonical NaN, so that no path can tell which NaN came in first.
#pragma once

#include "llcoll/lanes.h"

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

namespace llcoll {
inline namespace LLC_ISA {

struct Float32 {
  static constexpr DType kDType = DType::kFloat32;
  using Word = uint32_t;
  static constexpr int kPerWord = 1;
  static constexpr Word kNan = 0x7FC00000u;
  template <class W>
  using Acc = Rebind<float, W>;
  template <class W>
  static LLC_FN Acc<W> unpack(W w, int) {
    return bits_as<Acc<W>>(w);
  }
  template <class W>
  static LLC_FN W pack(Acc<W> a, int) {
    return choose(a != a, W{} + kNan, bits_as<W>(a));
  }
};

struct Float64 {
  static constexpr DType kDType = DType::kFloat64;
  using Word = uint64_t;
  static constexpr int kPerWord = 1;
  static constexpr Word kNan = 0x7FF8000000000000ull;
  template <class W>
  using Acc = Rebind<double, W>;
  template <class W>
  static LLC_FN Acc<W> unpack(W w, int) {
    return bits_as<Acc<W>>(w);
  }
  template <class W>
  static LLC_FN W pack(Acc<W> a, int) {
    return choose(a != a, W{} + kNan, bits_as<W>(a));
  }
};

// Two halves of a 32-bit word: unpacking is a shift or a mask.
struct BFloat16 {
  static constexpr DType kDType = DType::kBFloat16;
  using Word = uint32_t;
  static constexpr int kPerWord = 2;
  static constexpr Word kNan = 0x7FC07FC0u;
  template <class W>
  using Acc = Rebind<float, W>;
  template <class W>
  static LLC_FN Acc<W> unpack(W w, int k) {
    return bits_as<Acc<W>>(k == 0 ? (w << 16) : (w & 0xFFFF0000u));
  }
  // Integer rounding, not AVX512-BF16's converts: those flush subnormals.
  template <class W>
  static LLC_FN W pack(Acc<W> a, int k) {
#if defined(__CUDACC__)
    const uint32_t rounded = uint32_t{__bfloat16_as_ushort(__float2bfloat16_rn(a))} << 16;
#else
    const W u = bits_as<W>(a);
    const W rounded = u + 0x7FFFu + ((u >> 16) & 1u);
#endif
    const W bits = choose(a != a, W{} + 0x7FC00000u, rounded);
    return k == 0 ? (bits >> 16) : (bits & 0xFFFF0000u);
  }
};

// IEEE-like small floats of `kE` exponent and `kM` mantissa bits, by integer and exact float32 steps. `kTop`: float32
// bits from which on a magnitude overflows; `kOverflow`: what overflow gives, as torch's cast does.
template <DType dtype, int kE, int kM, bool kHasInf, uint32_t kTop, uint32_t kOverflow, uint32_t kQuietNan>
struct SmallFloat {
  static constexpr DType kDType = dtype;
  using Word = uint32_t;
  static constexpr int kBits = 1 + kE + kM;
  static constexpr int kPerWord = 32 / kBits;
  static constexpr int kBias = (1 << (kE - 1)) - 1;
  static constexpr Word kNan = kBits == 16 ? kQuietNan * 0x00010001u : kQuietNan * 0x01010101u;
  template <class W>
  using Acc = Rebind<float, W>;

  template <class W>
  static LLC_FN Acc<W> unpack(W w, int k) {
    constexpr uint32_t kMagnitude = (1u << (kBits - 1)) - 1;
    const W element = w >> (k * kBits);
    const W sign = (element << (32 - kBits)) & 0x80000000u;
    const W magnitude = element & kMagnitude;
    // Rebias by an exact multiplication: it normalises subnormals too (float32 subnormals must not be flushed).
    constexpr float kScale = __builtin_bit_cast(float, uint32_t(127 - kBias + 127) << 23);
    const W scaled = bits_as<W>(bits_as<Acc<W>>(W(magnitude << (23 - kM))) * kScale);
    constexpr uint32_t kFirstSpecial = kHasInf ? ((1u << kE) - 1) << kM : kMagnitude;
    const W special = kHasInf ? W((magnitude << (23 - kM)) | 0x7F800000u) : W(W{} + 0x7FC00000u);
    return bits_as<Acc<W>>(W(sign | choose(magnitude >= kFirstSpecial, special, scaled)));
  }

  template <class W>
  static LLC_FN W pack(Acc<W> a, int k) {
    const W bits = bits_as<W>(a);
    const W sign = (bits & 0x80000000u) >> (32 - kBits);
    const W magnitude = bits & 0x7FFFFFFFu;
    // Below the smallest normal: adding this power of two leaves the rounded subnormal in the low mantissa bits.
    constexpr uint32_t kMagic = uint32_t(127 - kBias + 23 - kM + 1) << 23;
    const W subnormal = bits_as<W>(bits_as<Acc<W>>(magnitude) + __builtin_bit_cast(float, kMagic)) - kMagic;
    constexpr uint32_t kRebias = uint32_t(127 - kBias) << 23;
    constexpr uint32_t kHalf = (1u << (22 - kM)) - 1;
    const W normal = (magnitude - kRebias + kHalf + ((magnitude >> (23 - kM)) & 1u)) >> (23 - kM);
    constexpr uint32_t kSmallestNormal = uint32_t(127 - kBias + 1) << 23;
    W result = choose(magnitude < kSmallestNormal, subnormal, normal);
    result = choose(magnitude >= kTop, W{} + kOverflow, result) | sign;
    result = choose(a != a, W{} + kQuietNan, result);
    // Where overflow is NaN (no infinity) it is the canonical one, without a sign.
    if constexpr (kOverflow == kQuietNan) result = choose((result & kOverflow) == kOverflow, W{} + kQuietNan, result);
    return result << (k * kBits);
  }
};
using Float8E4M3 = SmallFloat<DType::kFloat8E4M3, 4, 3, false, 0x43F00000u, 0x7Fu, 0x7Fu>;    // from 480 on
using Float8E5M2 = SmallFloat<DType::kFloat8E5M2, 5, 2, true, 0x47800000u, 0x7Cu, 0x7Fu>;     // from 65536 on
using Float16Bits = SmallFloat<DType::kFloat16, 5, 10, true, 0x47800000u, 0x7C00u, 0x7E00u>;  // from 65536 on

#if defined(__CUDACC__)
struct Float16 : Float16Bits {
  template <class W>
  static LLC_FN float unpack(W w, int k) {
    return __half2float(__ushort_as_half(static_cast<unsigned short>(w >> (16 * k))));
  }
  template <class W>
  static LLC_FN W pack(float a, int k) {
    const W bits = a != a ? 0x7E00u : W{__half_as_ushort(__float2half_rn(a))};
    return bits << (16 * k);
  }
};
#else
using Float16 = Float16Bits;
#endif

// Integers of `kBits`, signed or not, in two's complement of the word's width: sums and products wrap modulo 2^kBits
// whatever the width, order and average need the sign back (`signed_of`).
template <DType dtype, class T, class WordType>
struct Integer {
  static constexpr DType kDType = dtype;
  using Word = WordType;
  static constexpr int kBits = 8 * sizeof(T);
  static constexpr int kWordBits = 8 * sizeof(Word);
  static constexpr int kPerWord = kWordBits / kBits;
  static constexpr Word kNan = 0;
  static constexpr bool kSigned = std::is_signed_v<T>;
  template <class W>
  using Acc = W;
  template <class W>
  static LLC_FN auto signed_of(W a) {
    using S = Rebind<std::make_signed_t<Word>, W>;
    if constexpr (kSigned) {
      return S(bits_as<S>(W(a << (kWordBits - kBits))) >> (kWordBits - kBits));
    } else {
      return S(bits_as<S>(W(a & (~Word{0} >> (kWordBits - kBits)))));
    }
  }
  template <class W>
  static LLC_FN W unpack(W w, int k) {
    return w >> (k * kBits);
  }
  template <class W>
  static LLC_FN W pack(W a, int k) {
    return (a & (~Word{0} >> (kWordBits - kBits))) << (k * kBits);
  }
};
using Int8 = Integer<DType::kInt8, int8_t, uint32_t>;
using UInt8 = Integer<DType::kUInt8, uint8_t, uint32_t>;
using Int32 = Integer<DType::kInt32, int32_t, uint32_t>;
using Int64 = Integer<DType::kInt64, int64_t, uint64_t>;

// torch stores 0 and 1; whole words are combined bit by bit.
struct Bool {
  static constexpr DType kDType = DType::kBool;
  using Word = uint32_t;
  static constexpr int kPerWord = 1;
  static constexpr Word kNan = 0;
  template <class W>
  using Acc = W;
  template <class W>
  static LLC_FN W unpack(W w, int) {
    return w;
  }
  template <class W>
  static LLC_FN W pack(W a, int) {
    return a;
  }
};

}  // namespace LLC_ISA
}  // namespace llcoll
