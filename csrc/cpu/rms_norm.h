// The norm of rows on the CPU: one instance per instruction set.
#pragma once

#include "llcoll/word.h"  // opens the inline namespace of this instruction set
#include "norm_call.h"

namespace llcoll {

// work: three buffers of work_floats each, a power of two, at least the row's elements rounded up to whole units.
#if defined(__x86_64__)
namespace sse2 {
void cpu_rms_norm(const NormCall& call, float* work, uint32_t work_floats);
}
namespace avx2 {
void cpu_rms_norm(const NormCall& call, float* work, uint32_t work_floats);
}
namespace avx512 {
void cpu_rms_norm(const NormCall& call, float* work, uint32_t work_floats);
}
#else
namespace plain {
void cpu_rms_norm(const NormCall& call, float* work, uint32_t work_floats);
}
#endif

}  // namespace llcoll
