// The shipped algorithms and protocols, unchanged.
#include "sim/kernels.h"
#include "sim/sim_memory_rows.h"

namespace llcoll::sim {
namespace {

template <template <class> class Protocol, class... Types>
void add_types(std::vector<KernelRow>& rows, const char* one, const char* two, ScratchKind scratch) {
  add_float32<Protocol, false>(rows, one, scratch);
  add_float32<Protocol, true>(rows, two, scratch);
  (add_type<Protocol, false, Types>(rows, one, scratch), ...);
  (add_type<Protocol, true, Types>(rows, two, scratch), ...);
}

}  // namespace

void add_shipped(std::vector<KernelRow>& rows) {
  add_types<Ll, Float64, BFloat16, Int32>(rows, "one_shot_ll", "two_shot_ll", ScratchKind::kLl);
  add_types<Sentinel, Float64, BFloat16>(rows, "one_shot_sentinel", "two_shot_sentinel", ScratchKind::kSentinel);
  add_types<Flag, Float64, BFloat16, UInt8>(rows, "one_shot_flag", "two_shot_flag", ScratchKind::kFlag);
  // Chunks staged one ahead, also by streaming stores; last as the CPU runs it.
  add_float32<Flag, false, SimMemoryAhead>(rows, "one_shot_flag_ahead", ScratchKind::kFlag);
  add_float32<Flag, true, SimMemoryAhead>(rows, "two_shot_flag_ahead", ScratchKind::kFlag);
  add_float32<Flag, false, SimMemoryStreaming>(rows, "one_shot_flag_streaming", ScratchKind::kFlag);
  add_float32<Flag, true, SimMemoryStreaming>(rows, "two_shot_flag_streaming", ScratchKind::kFlag);
  add_float32<Flag, false, SimMemorySwapping>(rows, "one_shot_flag_swapping_streaming", ScratchKind::kFlag);
  add_float32<Flag, true, SimMemorySwapping>(rows, "two_shot_flag_swapping_streaming", ScratchKind::kFlag);
  add_float32<Flag, false, SimMemoryRows>(rows, "one_shot_flag_rows", ScratchKind::kFlag);
  add_float32<Flag, true, SimMemoryRows>(rows, "two_shot_flag_rows", ScratchKind::kFlag);
  add_type<Flag, false, BFloat16, SimMemoryRows>(rows, "one_shot_flag_rows", ScratchKind::kFlag);
  add_type<Flag, true, BFloat16, SimMemoryRows>(rows, "two_shot_flag_rows", ScratchKind::kFlag);
  add_type<Flag, false, UInt8, SimMemoryRows>(rows, "one_shot_flag_rows", ScratchKind::kFlag);
  add_type<Flag, true, UInt8, SimMemoryRows>(rows, "two_shot_flag_rows", ScratchKind::kFlag);
}

}  // namespace llcoll::sim
