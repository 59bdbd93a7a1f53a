// The shipped collectives of one exchange.
#include "sim/kernels.h"
#include "sim/sim_memory_rows.h"

namespace llcoll::sim {

void add_exchanges(std::vector<KernelRow>& rows) {
  constexpr auto kGather = Collective::kAllGather;
  constexpr auto kScatter = Collective::kReduceScatter;
  constexpr auto kAll = Collective::kAllToAll;
  add_exchange<Ll, kGather>(rows, "all_gather_ll", ScratchKind::kLl);
  add_exchange<Ll, kGather>(rows, "broadcast_ll", ScratchKind::kLl, Collective::kBroadcast);
  add_exchange<Ll, kScatter>(rows, "reduce_scatter_ll", ScratchKind::kLl);
  add_exchange<Ll, kScatter>(rows, "reduce_ll", ScratchKind::kLl, Collective::kReduce);
  add_exchange<Ll, kAll>(rows, "all_to_all_ll", ScratchKind::kLl);
  add_exchange<Sentinel, kScatter>(rows, "reduce_scatter_sentinel", ScratchKind::kSentinel);
  add_exchange<Sentinel, kScatter>(rows, "reduce_sentinel", ScratchKind::kSentinel, Collective::kReduce);
  add_exchange<Flag, kGather>(rows, "all_gather_flag", ScratchKind::kFlag);
  add_exchange<Flag, kGather>(rows, "broadcast_flag", ScratchKind::kFlag, Collective::kBroadcast);
  add_exchange<Flag, kScatter>(rows, "reduce_scatter_flag", ScratchKind::kFlag);
  add_exchange<Flag, kScatter>(rows, "reduce_flag", ScratchKind::kFlag, Collective::kReduce);
  add_exchange<Flag, kAll>(rows, "all_to_all_flag", ScratchKind::kFlag);
  add_exchange<Flag, kGather, SimMemoryAhead>(rows, "all_gather_flag_ahead", ScratchKind::kFlag);
  add_exchange<Flag, kScatter, SimMemoryAhead>(rows, "reduce_scatter_flag_ahead", ScratchKind::kFlag);
  add_exchange<Flag, kAll, SimMemoryAhead>(rows, "all_to_all_flag_ahead", ScratchKind::kFlag);
  add_exchange<Flag, kGather, SimMemoryRows>(rows, "all_gather_flag_rows", ScratchKind::kFlag);
  add_exchange<Flag, kScatter, SimMemoryRows>(rows, "reduce_scatter_flag_rows", ScratchKind::kFlag);
  add_exchange<Flag, kAll, SimMemoryRows>(rows, "all_to_all_flag_rows", ScratchKind::kFlag);
}

}  // namespace llcoll::sim
