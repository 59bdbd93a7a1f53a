// Which set of CPU kernels this machine runs, and the floating-point mode they run in.
#pragma once

#if defined(__x86_64__)
#include <cpuid.h>
#include <xmmintrin.h>
#endif

namespace llcoll {

enum class Isa { kPlain, kSse2, kAvx2, kAvx512 };

inline Isa best_isa() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq")) {
    return Isa::kAvx512;
  }
  // Clang's __builtin_cpu_supports does not know f16c.
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  const bool has_f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
  return __builtin_cpu_supports("avx2") && has_f16c ? Isa::kAvx2 : Isa::kSse2;
#else
  return Isa::kPlain;
#endif
}

// Results must not depend on the caller's rounding and flush-to-zero mode: every rank computes the same sums.
class DefaultFloatMode {
 public:
#if defined(__x86_64__)
  DefaultFloatMode() : saved_(_mm_getcsr()) {
    if ((saved_ & kModeBits) != 0) [[unlikely]]
      _mm_setcsr(saved_ & ~kModeBits);
  }
  ~DefaultFloatMode() {
    if ((saved_ & kModeBits) != 0) [[unlikely]]
      _mm_setcsr(saved_);
  }
  DefaultFloatMode(const DefaultFloatMode&) = delete;
  DefaultFloatMode& operator=(const DefaultFloatMode&) = delete;

 private:
  static constexpr unsigned kModeBits = 0x8000u | 0x6000u | 0x0040u;  // flush, rounding, denormals-are-zero
  unsigned saved_;
#endif
};

}  // namespace llcoll
