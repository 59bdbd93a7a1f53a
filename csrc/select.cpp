#include "select.h"

#include "check.h"

namespace llcoll {
namespace {

constexpr size_t kKiB = 1024;
constexpr size_t kMiB = 1024 * kKiB;

// x86 keeps stores in order, so one flag behind a copy beats packets from 128 B on. Two-shot halves what more than two
// ranks read, at the price of a second exchange.
Algorithm select_cpu(size_t bytes, int world_size) {
  if (bytes <= 64) return Algorithm::kOneShotLl;
  if (world_size <= 2) return Algorithm::kOneShotFlag;
  const size_t crossover = world_size <= 4 ? 16 * kKiB : 4 * kKiB;
  return bytes <= crossover ? Algorithm::kOneShotFlag : Algorithm::kTwoShotFlag;
}

// Crossovers of one H200 shared by all ranks (loopback), where every push costs the one L2; used for ranks that own
// their GPUs too until such a machine was measured. Beyond the last one the user's own engine is not slower.
Algorithm select_cuda(size_t bytes, DType dtype, int world_size) {
  const bool floating = is_floating(dtype);
  const size_t ll_limit = world_size <= 2 ? 128 * kKiB : world_size <= 4 ? 64 * kKiB : 16 * kKiB;
  if (bytes <= ll_limit) return Algorithm::kOneShotLl;
  if (world_size <= 2) {
    if (floating && bytes <= 2 * kMiB) return Algorithm::kOneShotSentinel;
    return bytes <= 8 * kMiB    ? Algorithm::kOneShotFlag
           : bytes <= 64 * kMiB ? Algorithm::kTwoShotFlag
                                : Algorithm::kTorch;
  }
  if (floating && bytes <= (world_size <= 4 ? 512 : 64) * kKiB) return Algorithm::kOneShotSentinel;
  if (floating && bytes <= 2 * kMiB) return Algorithm::kTwoShotSentinel;
  return bytes <= 64 * kMiB ? Algorithm::kOneShotFlag : Algorithm::kTorch;
}

}  // namespace

Protocol protocol_of(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::kOneShotLl:
    case Algorithm::kTwoShotLl:
      return kLl;
    case Algorithm::kOneShotSentinel:
    case Algorithm::kTwoShotSentinel:
      return kSentinel;
    default:
      return kFlag;
  }
}

bool supports(Algorithm algorithm, DType dtype, ReduceOp, const Topology& topology) {
  switch (algorithm) {
    case Algorithm::kOneShotSentinel:
    case Algorithm::kTwoShotSentinel:
      return is_floating(dtype);
    case Algorithm::kOneShotLl:
    case Algorithm::kTwoShotLl:
      return topology.wide_packets;
    case Algorithm::kTwoShotLl128:
      return false;  // no backend has it yet
    default:
      return true;
  }
}

Algorithm select(size_t bytes, DType dtype, ReduceOp, int world_size, const Topology& topology, Policy policy, bool) {
  if (!topology.cuda) return select_cpu(bytes, world_size);
  Algorithm algorithm = select_cuda(bytes, dtype, world_size);
  // The fallback does not promise bits; a message of any size can be cut into chunks.
  if (algorithm == Algorithm::kTorch && policy == Policy::kInvariant) algorithm = Algorithm::kTwoShotFlag;
  if (algorithm == Algorithm::kOneShotLl && !topology.wide_packets) {
    algorithm = is_floating(dtype) ? Algorithm::kOneShotSentinel : Algorithm::kOneShotFlag;
  }
  return algorithm;
}

Algorithm resolve_algorithm(const Options& options, const Topology& topology, Collective kind, size_t numel,
                            DType dtype, ReduceOp op, Algorithm requested) {
  if (kind != Collective::kAllReduce) return resolve_exchange(options, topology, kind, numel, dtype, op, requested);
  check_that(!(op == ReduceOp::kAvg && dtype == DType::kBool), "reduce_op 'avg' has no meaning for bool");
  Algorithm wanted = requested;
  const bool from_environment = requested == Algorithm::kAuto && options.forced != Algorithm::kAuto;
  if (from_environment) wanted = options.forced;
  if (wanted == Algorithm::kAuto) {
    return select(numel * element_bytes(dtype), dtype, op, options.world_size, topology, options.policy,
                  options.allow_low_precision);
  }
  check_that(supports(wanted, dtype, op, topology), "algorithm '", name_of(wanted), "'",
             from_environment ? " (from LLCOLL_ALGORITHM)" : "", " cannot serve ", name_of(op), " of ", name_of(dtype),
             is_sentinel(wanted) ? ": integers have no spare bit pattern; use one_shot_ll or auto" : "");
  return wanted;
}

}  // namespace llcoll
