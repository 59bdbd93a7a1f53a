#include "select.h"

#include <algorithm>

#include "check.h"

namespace llcoll {
namespace {

// What serves everything, chunk by chunk, and keeps its bits: where a table names nothing that may be used.
constexpr Algorithm kLastResort = Algorithm::kTwoShotFlag;

}  // namespace

Protocol protocol_of(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::kOneShotLl:
    case Algorithm::kTwoShotLl:
      return kLl;
    case Algorithm::kOneShotSentinel:
    case Algorithm::kTwoShotSentinel:
      return kSentinel;
    case Algorithm::kTwoShotLl128:
      return kLl128;
    default:
      return kFlag;
  }
}

bool supports(Algorithm algorithm, DType dtype, ReduceOp op, const Topology& topology) {
  const bool spans_nodes = algorithm == Algorithm::kLeaders || algorithm == Algorithm::kLanes;
  if (topology.num_nodes > 1) return spans_nodes || algorithm == Algorithm::kTorch;
  if (spans_nodes) return false;
  switch (algorithm) {
    case Algorithm::kOneShotSentinel:
    case Algorithm::kTwoShotSentinel:
      return is_floating(dtype);
    case Algorithm::kTwoShotLl128:
      return topology.line_atomics && op == ReduceOp::kSum &&
             (dtype == DType::kFloat32 || dtype == DType::kFloat16 || dtype == DType::kBFloat16);
    case Algorithm::kTwoShotMultimem:
      return topology.has_multicast && op == ReduceOp::kSum &&
             (dtype == DType::kFloat32 || dtype == DType::kFloat16 || dtype == DType::kBFloat16);
    default:
      return true;
  }
}

bool is_allowed(Algorithm algorithm, DType dtype, ReduceOp, Policy policy, bool allow_low_precision) {
  switch (algorithm) {
    case Algorithm::kTorch:
    case Algorithm::kTwoShotMultimem:  // the switch's order is its own
      return policy == Policy::kFast;
    case Algorithm::kTwoShotLl128:
      return policy == Policy::kFast && (dtype == DType::kFloat32 || allow_low_precision);
    default:
      return true;
  }
}

Selection::Selection(const Options& options, const Topology& topology) {
  const Table table =
      parse_table(options.table.empty() ? default_table(topology, options.world_size).rows : options.table);
  const Algorithm last_resort = topology.num_nodes > 1 ? Algorithm::kLanes : kLastResort;
  for (int d = 0; d < kNumDTypes; ++d) {
    const auto dtype = static_cast<DType>(d);
    const std::vector<TableRow>& wanted = table.rows[static_cast<int>(class_of(dtype))];
    for (int o = 0; o < kNumReduceOps; ++o) {
      const auto op = static_cast<ReduceOp>(o);
      auto usable = [&](const TableRow& row) {
        return supports(row.algorithm, dtype, op, topology) &&
               is_allowed(row.algorithm, dtype, op, options.policy, options.allow_low_precision);
      };
      for (size_t i = 0; i < wanted.size(); ++i) {
        // What serves the next larger messages serves these next best.
        const auto found = std::find_if(wanted.begin() + static_cast<std::ptrdiff_t>(i), wanted.end(), usable);
        rows_[d][o][i] = {wanted[i].max_bytes, found == wanted.end() ? last_resort : found->algorithm};
      }
    }
  }
}

Algorithm resolve_algorithm(const Options& options, const Topology& topology, const Selection& selection,
                            Collective kind, size_t numel, DType dtype, ReduceOp op, Algorithm requested) {
  if (kind != Collective::kAllReduce) return resolve_exchange(options, topology, kind, numel, dtype, op, requested);
  check_that(!(op == ReduceOp::kAvg && dtype == DType::kBool), "reduce_op 'avg' has no meaning for bool");
  Algorithm wanted = requested;
  const bool from_environment = requested == Algorithm::kAuto && options.forced != Algorithm::kAuto;
  if (from_environment) wanted = options.forced;
  if (wanted == Algorithm::kAuto) return selection(numel * element_bytes(dtype), dtype, op);
  check_that(supports(wanted, dtype, op, topology), "algorithm '", name_of(wanted), "'",
             from_environment ? " (from LLCOLL_ALGORITHM)" : "", " cannot serve ", name_of(op), " of ", name_of(dtype),
             topology.num_nodes > 1
                 ? ": the group spans nodes, so it takes leaders, lanes, torch or auto; LLCOLL_ALGORITHM names what "
                   "runs inside each"
             : wanted == Algorithm::kLeaders || wanted == Algorithm::kLanes ? ": the group is within one node"
             : is_sentinel(wanted) ? ": integers have no spare bit pattern; use one_shot_ll or auto"
             : wanted == Algorithm::kTwoShotLl128
                 ? ": it sums float32, float16 and bfloat16 on GPUs of sm_90 or newer that "
                   "are one GPU or joined by NVLink"
             : wanted == Algorithm::kTwoShotMultimem
                 ? ": it sums float32, float16 and bfloat16 where the group's memory has a multicast address"
                 : "");
  return wanted;
}

}  // namespace llcoll
