// Words side by side: scalars on CUDA, GCC vectors on CPU (GCC turns loops over lanes into scalar code, 4-7x slower).
// Generic code is written once over both: arithmetic, comparison and `mask ? a : b` look the same.
#pragma once

#include <type_traits>

#include "llcoll/word.h"

namespace llcoll {
inline namespace LLC_ISA {

#if defined(__CUDACC__) || !defined(__GNUC__)
inline constexpr int kVectorBytes = 0;  // scalars only
#elif defined(__AVX512F__)
inline constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
inline constexpr int kVectorBytes = 32;
#else
inline constexpr int kVectorBytes = 16;
#endif

template <class T, int n>
struct LanesOf {
#if !defined(__CUDACC__) && defined(__GNUC__)
  typedef T type __attribute__((vector_size(n * sizeof(T))));
#endif
};
template <class T>
struct LanesOf<T, 1> {
  using type = T;
};
template <class T, int n>
using Lanes = typename LanesOf<T, n>::type;

// As many T as one register holds, but no more than a unit has.
template <class T, int unit_bytes>
inline constexpr int kNumLanes = kVectorBytes <= 8 || unit_bytes <= 8
                                     ? 1
                                     : (unit_bytes < kVectorBytes ? unit_bytes : kVectorBytes) / int{sizeof(T)};

template <class To, class From>
LLC_FN To bits_as(From value) {
  static_assert(sizeof(To) == sizeof(From));
  return __builtin_bit_cast(To, value);
}

// Lane-wise choice. `mask` came from comparing lanes of the same width.
template <class Mask, class V>
LLC_FN V choose(Mask mask, V yes, V no) {
  return mask ? yes : no;
}

// The lanes of V with elements of type T (same width, same count).
template <class T, class V>
struct RebindLanes {
  using type = Lanes<T, int(sizeof(V) / sizeof(T))>;
};
template <class T, class V>
using Rebind = typename RebindLanes<T, V>::type;

}  // namespace LLC_ISA
}  // namespace llcoll
