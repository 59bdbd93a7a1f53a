// The collectives of one exchange for shared host memory. Compiled once per instruction set, as kernels.cpp is.
#include "cpu/kernels.h"
#include "llcoll/all_gather.h"
#include "llcoll/all_to_all.h"
#include "llcoll/flag.h"
#include "llcoll/group.h"
#include "llcoll/reduce_scatter.h"
#include "llcoll/sentinel.h"

namespace llcoll {
inline namespace LLC_ISA {
namespace {

template <template <class> class Protocol, bool to_all>
void copy_kernel(HostWait* wait, const void* scratch, const void* input, const void* output, const void* cut,
                 ReduceOp) {
  HostMemory mem{wait};
  const auto& s = *static_cast<const Scratch*>(scratch);
  const auto& in = *static_cast<const Parts*>(input);
  const auto& out = *static_cast<const Parts*>(output);
  const auto& c = *static_cast<const Cut*>(cut);
  // Copies move bytes: the type is of no account.
  if constexpr (to_all) {
    all_to_all<Protocol, UInt8>(mem, Solo{}, s, in, out, c);
  } else {
    all_gather<Protocol, UInt8>(mem, Solo{}, s, in, out, c);
  }
}

template <template <class> class Protocol, class Type, int ranks, class Op>
void reduce_kernel(HostWait* wait, const void* scratch, const void* input, const void* output, const void* cut,
                   ReduceOp op) {
  HostMemory mem{wait};
  Op operation;
  if constexpr (!std::is_same_v<Op, SumOp>) operation.value = op;
  reduce_scatter<Protocol, Type, ranks>(mem, Solo{}, *static_cast<const Scratch*>(scratch),
                                        *static_cast<const Parts*>(input), *static_cast<const Parts*>(output),
                                        *static_cast<const Cut*>(cut), operation);
}

template <template <class> class Protocol, class Type>
CpuExchange find_row(const CpuKernelKey& key) {
  constexpr bool kHot =
      std::is_same_v<Type, Float32> || std::is_same_v<Type, BFloat16> || std::is_same_v<Type, Float16>;
  if constexpr (kHot) {
    if (key.op == ReduceOp::kSum) {
      return key.num_ranks == 2 ? reduce_kernel<Protocol, Type, 2, SumOp> : reduce_kernel<Protocol, Type, 0, SumOp>;
    }
  }
  return reduce_kernel<Protocol, Type, 0, AnyOp>;
}

template <template <class> class Protocol, class... Types>
CpuExchange find_type(const CpuKernelKey& key) {
  CpuExchange found = nullptr;
  ((Types::kDType == key.dtype ? void(found = find_row<Protocol, Types>(key)) : void()), ...);
  return found;
}

template <template <class> class Protocol>
CpuExchange find_reduction(const CpuKernelKey& key) {
  if constexpr (std::is_same_v<Protocol<HostMemory>, Sentinel<HostMemory>>) {
    return find_type<Protocol, Float32, Float64, Float16, BFloat16, Float8E4M3, Float8E5M2>(key);
  } else {
    return find_type<Protocol, Float32, Float64, Float16, BFloat16, Float8E4M3, Float8E5M2, Int8, UInt8, Int32, Int64,
                     Bool>(key);
  }
}

template <template <class> class Protocol>
CpuExchange find_exchange(Collective kind, const CpuKernelKey& key) {
  switch (kind) {
    case Collective::kReduceScatter:
    case Collective::kReduce:
      return find_reduction<Protocol>(key);
    case Collective::kAllGather:
    case Collective::kBroadcast:
      return copy_kernel<Protocol, false>;
    default:
      return copy_kernel<Protocol, true>;
  }
}

}  // namespace

CpuExchange find_cpu_exchange(Collective kind, const CpuKernelKey& key) {
  switch (key.algorithm) {
    case Algorithm::kOneShotLl:
      return find_exchange<Ll>(kind, key);
    case Algorithm::kOneShotSentinel:
      return kind == Collective::kReduceScatter || kind == Collective::kReduce ? find_reduction<Sentinel>(key)
                                                                               : nullptr;
    case Algorithm::kOneShotFlag:
      return find_exchange<Flag>(kind, key);
    default:
      return nullptr;
  }
}

}  // namespace LLC_ISA
}  // namespace llcoll
