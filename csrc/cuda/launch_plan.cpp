#include "cuda/launch_plan.h"

#include <algorithm>

#include "check.h"
#include "cuda/line_plan.h"

namespace llcoll {
namespace {

constexpr uint64_t kAlign = 256;
constexpr uint64_t kDefaultScratch = 64ull << 20;
constexpr uint64_t round_up(uint64_t n) { return (n + kAlign - 1) / kAlign * kAlign; }

struct ProtocolFacts {
  uint32_t slot_bytes;
  uint32_t unit_bytes;
  uint32_t num_buffers;
  bool push;
  const char* name;
};
// Must agree with the protocol headers, whose CUDA instances only nvcc sees; launch.cuh asserts it.
constexpr ProtocolFacts kFacts[kNumProtocols] = {
    {16, 8, 2, true, "LL"}, {16, 16, 3, true, "sentinel"}, {16, 16, 2, false, "flag"}, {16, 16, 3, true, "LL128"}};
constexpr uint32_t kNarrowLlBuffers = 3;

ScratchShape shape_for(Protocol p, uint64_t bytes, uint32_t num_channels, int num_ranks, bool wide_packets) {
  ProtocolFacts facts = kFacts[p];
  if (p == kLl && !wide_packets) facts.num_buffers = kNarrowLlBuffers;
  const uint64_t regions = facts.push ? push_regions(2, num_ranks) : pull_regions(2, num_ranks);
  const uint64_t slots =
      std::min(bytes / facts.num_buffers / num_channels / facts.slot_bytes / kStrideUnits * kStrideUnits,
               max_slots(num_channels, facts.slot_bytes));
  check_that(slots >= regions * kStrideUnits, "scratch_bytes is too small for ", num_ranks, " ranks: the ", facts.name,
             " slots get ", bytes, " bytes of it and need ",
             regions * kStrideUnits * facts.slot_bytes * facts.num_buffers * num_channels);
  return make_shape(static_cast<uint32_t>(slots), num_channels, facts.num_buffers, facts.slot_bytes, sizeof(Packet),
                    num_ranks);
}

CudaKernel find(Algorithm algorithm, const CudaKernelKey& key) {
  switch (algorithm) {
    case Algorithm::kOneShotLl:
      return find_one_shot_ll(key);
    case Algorithm::kOneShotSentinel:
      return find_one_shot_sentinel(key);
    case Algorithm::kOneShotFlag:
      return find_one_shot_flag(key);
    case Algorithm::kTwoShotLl:
      return find_two_shot_ll(key);
    case Algorithm::kTwoShotSentinel:
      return find_two_shot_sentinel(key);
    case Algorithm::kTwoShotFlag:
      return find_two_shot_flag(key);
    case Algorithm::kTwoShotMultimem:
      return find_two_shot_multimem(key);
    default:
      return nullptr;
  }
}

bool aligned(const void* pointer, uint32_t bytes) { return reinterpret_cast<uintptr_t>(pointer) % bytes == 0; }

}  // namespace

bool has_idle_epoch(const Plan& cut, uint32_t num_channels) {
  return uint64_t{num_channels - 1} * cut.per_channel + uint64_t{cut.num_chunks - 1} * cut.chunk >= cut.part;
}

// Many small CTAs rather than few large ones: each brings its own load and store ports.
uint32_t threads_for(uint32_t part, uint32_t max_channels) {
  for (uint32_t threads : {32u, 64u, 128u}) {
    if (part <= threads) return threads;
  }
  return part <= 256 * max_channels ? 256 : kMaxThreads;
}

// Warps without units run ahead through what follows the receive, so that its instructions are there when the others
// come: 0.1 to 0.5 us at 128 B to 2 KiB and 2 to 8 ranks (docs/results.md).
uint32_t with_idle_warps(uint32_t num_units) {
  constexpr uint32_t kIdleThreads = 64;
  return std::min<uint32_t>((num_units + 31) / 32 * 32 + kIdleThreads, kMaxThreads);
}

CudaLayout plan_cuda_buffer(const Options& options, uint32_t num_channels, bool wide_packets) {
  const uint64_t budget = options.scratch_bytes == 0 ? kDefaultScratch : options.scratch_bytes;
  CudaLayout layout{};
  layout.wide_packets = wide_packets;
  layout.shape[kLl] = shape_for(kLl, budget / 4, num_channels, options.world_size, wide_packets);
  layout.shape[kSentinel] = shape_for(kSentinel, budget / 4, num_channels, options.world_size, wide_packets);
  layout.shape[kFlag] = shape_for(kFlag, budget / 8 * 3, num_channels, options.world_size, wide_packets);
  layout.shape[kLl128] = plan_line_scratch(budget / 8, num_channels, options.world_size);
  layout.low_precision = options.allow_low_precision;
  uint64_t at = sizeof(DeviceControl);
  for (int p = 0; p < kNumProtocols; ++p) {
    layout.offset[p] = at = round_up(at);
    at += layout.shape[p].bytes();
  }
  layout.test_offset = at = round_up(at);
  layout.bytes = round_up(at + (kMaxRanks + 1) * sizeof(Packet));
  return layout;
}

// The slots fit their share whatever num_channels is; the rest grows with it.
uint64_t max_cuda_buffer_bytes(const Options& options) {
  const CudaLayout most = plan_cuda_buffer(options, kMaxChannels, true);
  uint64_t unused = 0;
  for (int p = 0; p < kNumProtocols; ++p) {
    const ScratchShape& shape = most.shape[p];
    unused += uint64_t{kMaxChannels} * shape.num_buffers * kStrideUnits * shape.slot_bytes;
  }
  return most.bytes + round_up(unused);
}

LaunchPlan plan_launch(const CollectiveCall& call, int num_ranks, const CudaLayout& layout, uint32_t max_channels) {
  if (call.algorithm == Algorithm::kTwoShotLl128) return plan_line_launch(call, num_ranks, layout, max_channels);
  LaunchPlan plan{};
  plan.protocol = protocol_of(call.algorithm);
  const ProtocolFacts& facts = kFacts[plan.protocol];
  const bool two = is_two_shot(call.algorithm);
  const int num_parts = two ? num_ranks : 1;
  const uint64_t bytes = call.numel * element_bytes(call.dtype);
  const uint64_t units = (bytes + facts.unit_bytes - 1) / facts.unit_bytes;
  const uint32_t part = static_cast<uint32_t>((units + num_parts - 1) / num_parts);
  const uint32_t regions = facts.push ? push_regions(two ? 2 : 1, num_ranks) : pull_regions(two ? 2 : 1, num_ranks);
  const uint32_t max_chunk = layout.shape[plan.protocol].slots_per_channel / regions / kStrideUnits * kStrideUnits;
  plan.num_threads = threads_for(part, max_channels);
  plan.num_channels = std::clamp<uint32_t>((part + plan.num_threads - 1) / plan.num_threads, 1, max_channels);
  plan.cut = make_plan(units, num_parts, plan.num_channels, max_chunk);
  while (facts.push && plan.num_channels > 1 && has_idle_epoch(plan.cut, plan.num_channels)) {
    plan.cut = make_plan(units, num_parts, --plan.num_channels, max_chunk);
  }
  const bool once = plan.cut.num_chunks == 1 && plan.cut.per_channel <= plan.num_threads;
  if (facts.push && once) plan.num_threads = with_idle_warps(plan.cut.per_channel);
  const CudaKernelKey key{call.dtype, call.op, num_ranks, once};
  if (plan.protocol == kLl && !layout.wide_packets) {
    plan.kernel = find_ll_narrow(two, call.dtype);
  } else if (layout.multicast && call.numel == 0 && call.algorithm == Algorithm::kOneShotFlag) {
    plan.kernel = find_multicast_barrier();
  } else {
    plan.kernel = layout.multicast ? find_multicast(call.algorithm, key) : nullptr;
    if (plan.kernel == nullptr) plan.kernel = find(call.algorithm, key);
  }
  plan.message = make_message(call.input, call.output, bytes, element_bytes(call.dtype), int(facts.unit_bytes),
                              aligned(call.input, facts.unit_bytes), aligned(call.output, facts.unit_bytes));
  return plan;
}

}  // namespace llcoll
