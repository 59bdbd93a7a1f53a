// Instantiations of the algorithms for shared host memory, and the table that finds them. Compiled once per
// instruction set with LLC_ISA naming the namespace: nothing here may be shared with another set's objects.
#include "cpu/kernels.h"

#include "llcoll/flag.h"
#include "llcoll/group.h"
#include "llcoll/sentinel.h"
#include "llcoll/two_shot.h"

namespace llcoll {
inline namespace LLC_ISA {
namespace {

template <template <class> class Protocol, bool two, class Type, int ranks, class Op>
void kernel(HostWait* wait, const void* scratch, const void* message, const void* plan, ReduceOp op) {
  HostMemory mem{wait};
  Op operation;
  if constexpr (!std::is_same_v<Op, SumOp>) operation.value = op;
  const auto& s = *static_cast<const Scratch*>(scratch);
  const auto& m = *static_cast<const Message*>(message);
  const auto& p = *static_cast<const Plan*>(plan);
  if constexpr (two) {
    two_shot<Protocol, Type, ranks>(mem, Solo{}, s, m, p, operation);
  } else {
    one_shot<Protocol, Type, ranks>(mem, Solo{}, s, m, p, operation);
  }
}

// The rows that almost every call uses. flatten: a call per unit in a phase loop costs more than its work.
template <template <class> class Protocol, bool two, class Type, int ranks>
[[gnu::flatten]] void hot_kernel(HostWait* wait, const void* scratch, const void* message, const void* plan,
                                 ReduceOp op) {
  kernel<Protocol, two, Type, ranks, SumOp>(wait, scratch, message, plan, op);
}

template <template <class> class Protocol, bool two, class Type>
CpuKernel find_row(const CpuKernelKey& key) {
  constexpr bool kHot =
      std::is_same_v<Type, Float32> || std::is_same_v<Type, BFloat16> || std::is_same_v<Type, Float16>;
  if constexpr (kHot) {
    if (key.op == ReduceOp::kSum) {
      return key.num_ranks == 2 ? hot_kernel<Protocol, two, Type, 2> : hot_kernel<Protocol, two, Type, 0>;
    }
  }
  return kernel<Protocol, two, Type, 0, AnyOp>;
}

template <template <class> class Protocol, bool two>
CpuKernel find_type(const CpuKernelKey& key) {
  constexpr bool kFloatsOnly = std::is_same_v<Protocol<HostMemory>, Sentinel<HostMemory>>;
  switch (key.dtype) {
    case DType::kFloat32:
      return find_row<Protocol, two, Float32>(key);
    case DType::kFloat64:
      return find_row<Protocol, two, Float64>(key);
    case DType::kFloat16:
      return find_row<Protocol, two, Float16>(key);
    case DType::kBFloat16:
      return find_row<Protocol, two, BFloat16>(key);
    case DType::kFloat8E4M3:
      return find_row<Protocol, two, Float8E4M3>(key);
    case DType::kFloat8E5M2:
      return find_row<Protocol, two, Float8E5M2>(key);
    default:
      break;
  }
  if constexpr (!kFloatsOnly) {
    switch (key.dtype) {
      case DType::kInt8:
        return find_row<Protocol, two, Int8>(key);
      case DType::kUInt8:
        return find_row<Protocol, two, UInt8>(key);
      case DType::kInt32:
        return find_row<Protocol, two, Int32>(key);
      case DType::kInt64:
        return find_row<Protocol, two, Int64>(key);
      case DType::kBool:
        return find_row<Protocol, two, Bool>(key);
      default:
        break;
    }
  }
  return nullptr;
}

}  // namespace

CpuKernel find_cpu_kernel(const CpuKernelKey& key) {
  switch (key.algorithm) {
    case Algorithm::kOneShotLl:
      return find_type<Ll, false>(key);
    case Algorithm::kTwoShotLl:
      return find_type<Ll, true>(key);
    case Algorithm::kOneShotSentinel:
      return find_type<Sentinel, false>(key);
    case Algorithm::kTwoShotSentinel:
      return find_type<Sentinel, true>(key);
    case Algorithm::kOneShotFlag:
      return find_type<Flag, false>(key);
    case Algorithm::kTwoShotFlag:
      return find_type<Flag, true>(key);
    default:
      return nullptr;
  }
}

}  // namespace LLC_ISA
}  // namespace llcoll
