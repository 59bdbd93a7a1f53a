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

template <template <class> class Protocol, bool two, class Type, int ranks, class Op, bool streaming>
void kernel(HostWait* wait, const void* scratch, const void* message, const void* plan, ReduceOp op) {
  HostMemory<streaming> mem{wait};
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
template <template <class> class Protocol, bool two, class Type, int ranks, bool streaming>
[[gnu::flatten]] void hot_kernel(HostWait* wait, const void* scratch, const void* message, const void* plan,
                                 ReduceOp op) {
  kernel<Protocol, two, Type, ranks, SumOp, streaming>(wait, scratch, message, plan, op);
}

template <template <class> class Protocol, bool two, class Type, bool streaming>
CpuKernel find_row(const CpuKernelKey& key) {
  constexpr bool kHot =
      std::is_same_v<Type, Float32> || std::is_same_v<Type, BFloat16> || std::is_same_v<Type, Float16>;
  if constexpr (kHot) {
    if (key.op == ReduceOp::kSum) {
      return key.num_ranks == 2 ? hot_kernel<Protocol, two, Type, 2, false>
                                : hot_kernel<Protocol, two, Type, 0, streaming>;
    }
  }
  return kernel<Protocol, two, Type, 0, AnyOp, streaming>;
}

template <template <class> class Protocol, bool two, bool streaming>
CpuKernel find_type(const CpuKernelKey& key) {
  constexpr bool kFloatsOnly = std::is_same_v<Protocol<HostMemory<false>>, Sentinel<HostMemory<false>>>;
  switch (key.dtype) {
    case DType::kFloat32:
      return find_row<Protocol, two, Float32, streaming>(key);
    case DType::kFloat64:
      return find_row<Protocol, two, Float64, streaming>(key);
    case DType::kFloat16:
      return find_row<Protocol, two, Float16, streaming>(key);
    case DType::kBFloat16:
      return find_row<Protocol, two, BFloat16, streaming>(key);
    case DType::kFloat8E4M3:
      return find_row<Protocol, two, Float8E4M3, streaming>(key);
    case DType::kFloat8E5M2:
      return find_row<Protocol, two, Float8E5M2, streaming>(key);
    default:
      break;
  }
  if constexpr (!kFloatsOnly) {
    switch (key.dtype) {
      case DType::kInt8:
        return find_row<Protocol, two, Int8, streaming>(key);
      case DType::kUInt8:
        return find_row<Protocol, two, UInt8, streaming>(key);
      case DType::kInt32:
        return find_row<Protocol, two, Int32, streaming>(key);
      case DType::kInt64:
        return find_row<Protocol, two, Int64, streaming>(key);
      case DType::kBool:
        return find_row<Protocol, two, Bool, streaming>(key);
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
      return find_type<Ll, false, false>(key);
    case Algorithm::kTwoShotLl:
      return find_type<Ll, true, false>(key);
    case Algorithm::kOneShotSentinel:
      return find_type<Sentinel, false, false>(key);
    case Algorithm::kTwoShotSentinel:
      return find_type<Sentinel, true, false>(key);
    case Algorithm::kOneShotFlag:
      return key.streaming ? find_type<Flag, false, true>(key) : find_type<Flag, false, false>(key);
    case Algorithm::kTwoShotFlag:
      return key.streaming ? find_type<Flag, true, true>(key) : find_type<Flag, true, false>(key);
    default:
      return nullptr;
  }
}

}  // namespace LLC_ISA
}  // namespace llcoll
