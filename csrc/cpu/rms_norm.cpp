#include "cpu/rms_norm.h"

#include <bit>
#include <memory>

#include "cpu/isa.h"

namespace llcoll {
namespace {

using Kernel = void (*)(const NormCall&, float*, uint32_t);

Kernel find_kernel() {
#if defined(__x86_64__)
  switch (best_isa()) {
    case Isa::kAvx512:
      return avx512::cpu_rms_norm;
    case Isa::kAvx2:
      return avx2::cpu_rms_norm;
    default:
      return sse2::cpu_rms_norm;
  }
#else
  return plain::cpu_rms_norm;
#endif
}

}  // namespace

void run_rms_norm(const NormCall& call) {
  static const Kernel kernel = find_kernel();
  constexpr uint32_t kUnitElements = 32;  // of 16 bits in a 64-byte unit
  const uint32_t work_floats = std::bit_ceil(call.num_columns + kUnitElements);
  thread_local std::unique_ptr<float[]> work;
  thread_local uint32_t size = 0;
  if (size < work_floats) {
    work = std::make_unique_for_overwrite<float[]>(size_t{3} * work_floats);
    size = work_floats;
  }
  const DefaultFloatMode mode;
  kernel(call, work.get(), size);
}

}  // namespace llcoll
