// The CPU kernels of one instruction set. kernels.cpp is compiled once per set, into a namespace of its own.
#pragma once

#include "llcoll/host_memory.h"
#include "llcoll/message.h"

namespace llcoll {

// Plain mirrors of the ISA-namespaced structs: passed as opaque pointers, since one caller serves all sets.
using CpuKernel = void (*)(HostWait* wait, const void* scratch, const void* message, const void* plan, ReduceOp op);

using CpuExchange = void (*)(HostWait* wait, const void* scratch, const void* input, const void* output,
                             const void* cut, ReduceOp op);

struct CpuKernelKey {
  Algorithm algorithm;
  DType dtype;
  ReduceOp op;
  int num_ranks;
};

// nullptr where the table has no row (integer types by sentinel).
#if defined(__x86_64__)
namespace sse2 {
CpuKernel find_cpu_kernel(const CpuKernelKey& key);
CpuExchange find_cpu_exchange(Collective kind, const CpuKernelKey& key);
}  // namespace sse2
namespace avx2 {
CpuKernel find_cpu_kernel(const CpuKernelKey& key);
CpuExchange find_cpu_exchange(Collective kind, const CpuKernelKey& key);
}  // namespace avx2
namespace avx512 {
CpuKernel find_cpu_kernel(const CpuKernelKey& key);
CpuExchange find_cpu_exchange(Collective kind, const CpuKernelKey& key);
}  // namespace avx512
#else
namespace plain {
CpuKernel find_cpu_kernel(const CpuKernelKey& key);
CpuExchange find_cpu_exchange(Collective kind, const CpuKernelKey& key);
}  // namespace plain
#endif

}  // namespace llcoll
