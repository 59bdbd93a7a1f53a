// Which protocol serves a collective of one exchange: reduce-scatter, all-gather, broadcast, reduce, all-to-all.
#include "check.h"
#include "select.h"

namespace llcoll {
namespace {

constexpr size_t kKiB = 1024;
constexpr const char* kTorn = "16-byte packets arrive torn between these GPUs";

bool reduces(Collective kind) { return kind == Collective::kReduceScatter || kind == Collective::kReduce; }

// The reason in words, or null where it can serve the call.
const char* why_not(Algorithm algorithm, Collective kind, DType dtype, const Topology& topology) {
  switch (algorithm) {
    case Algorithm::kOneShotFlag:
      // Its hello words carry more than their epoch.
      return kind == Collective::kAllToAllV && !topology.wide_packets ? kTorn : nullptr;
    case Algorithm::kOneShotLl:
      return topology.wide_packets ? nullptr : kTorn;
    case Algorithm::kOneShotSentinel:
      if (!reduces(kind)) return "a copy must be exact, and any bit pattern may be data; use one_shot_ll or auto";
      return is_floating(dtype) ? nullptr : "integers have no spare bit pattern; use one_shot_ll or auto";
    case Algorithm::kTorch:
      return nullptr;
    default:
      return "it is one exchange: choose auto, one_shot_ll, one_shot_sentinel, one_shot_flag or torch";
  }
}

// LLCOLL_ALGORITHM is meant for all-reduces; here it names the protocol. kAuto where that cannot serve the call.
Algorithm from_environment(Algorithm forced, Collective kind, DType dtype, const Topology& topology) {
  if (forced == Algorithm::kTorch) return Algorithm::kAuto;
  Algorithm wanted = forced;
  if (forced == Algorithm::kTwoShotLl) wanted = Algorithm::kOneShotLl;
  if (forced == Algorithm::kTwoShotSentinel) wanted = Algorithm::kOneShotSentinel;
  if (forced == Algorithm::kTwoShotFlag) wanted = Algorithm::kOneShotFlag;
  return why_not(wanted, kind, dtype, topology) == nullptr ? wanted : Algorithm::kAuto;
}

// As for the all-reduce: x86 keeps stores in order, so one flag behind a copy beats packets from 128 B on. With splits
// a rank does not know the sizes of other pairs, so they cannot decide.
Algorithm pick_cpu(Collective kind, size_t bytes) {
  return kind != Collective::kAllToAllV && bytes <= 64 ? Algorithm::kOneShotLl : Algorithm::kOneShotFlag;
}

// Where LL ends. Ranks that share a GPU: measured at 2 and 4 (docs/results.md), bytes of a part, or of the whole where
// that is what each rank sends or gets. Between GPUs not measured: as for the all-reduce.
size_t ll_limit(Collective kind, int world_size, bool shares_device) {
  if (!shares_device) return (world_size <= 2 ? 128 : world_size <= 4 ? 64 : 16) * kKiB;
  if (kind == Collective::kBroadcast || kind == Collective::kReduce) return (world_size <= 4 ? 1024 : 512) * kKiB;
  return (world_size <= 4 ? 512 : 128) * kKiB;
}

Algorithm pick_cuda(Collective kind, size_t bytes, DType dtype, int world_size, const Topology& topology) {
  const size_t sentinel_limit = (world_size <= 2 ? 2048 : world_size <= 4 ? 512 : 64) * kKiB;
  const bool small = kind == Collective::kAllToAllV || bytes <= ll_limit(kind, world_size, topology.shares_device);
  if (small && topology.wide_packets) return Algorithm::kOneShotLl;
  const bool by_sentinel = !topology.shares_device && reduces(kind) && is_floating(dtype) && bytes <= sentinel_limit;
  return by_sentinel ? Algorithm::kOneShotSentinel : Algorithm::kOneShotFlag;
}

}  // namespace

Algorithm resolve_exchange(const Options& options, const Topology& topology, Collective kind, size_t numel, DType dtype,
                           ReduceOp op, Algorithm requested) {
  check_that(!(reduces(kind) && op == ReduceOp::kAvg && dtype == DType::kBool),
             "reduce_op 'avg' has no meaning for bool");
  Algorithm wanted = requested;
  if (wanted == Algorithm::kAuto) wanted = from_environment(options.forced, kind, dtype, topology);
  if (wanted == Algorithm::kAuto) {
    const size_t bytes = numel * element_bytes(dtype);
    wanted = topology.cuda ? pick_cuda(kind, bytes, dtype, options.world_size, topology) : pick_cpu(kind, bytes);
  }
  const char* reason = why_not(wanted, kind, dtype, topology);
  if (reason != nullptr) [[unlikely]]
    fail_with("algorithm '", name_of(wanted), "' cannot serve ", name_of(kind), " of ", name_of(dtype), ": ", reason);
  return wanted;
}

}  // namespace llcoll
