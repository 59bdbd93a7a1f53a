// The shipped two-shot LL128, and its formats with a planted mistake.
#include "llcoll/two_shot_ll128.h"
#include "sim/kernels.h"
#include "sim/sim_lanes.h"

namespace llcoll::sim {
namespace {

template <class Format, int ranks, class Members, class Memory>
void line_kernel(Lane& lane) {
  using Group = LineGroup<Members, kLineBatch>;
  Memory mem{{&lane, 0}};
  lane.world.grid_wait(lane.thread);
  if (lane.world.program().early_trigger) lane.world.trigger(lane.thread);
  const Launch& launch = lane.launch;
  const auto lines = static_cast<uint32_t>(lane.world.program().calls[lane.world.call_of(lane.thread)].lines);
  const Group group(Members(lane), lines, launch.line_slots, lane.world.displaced(lane.thread));
  two_shot_ll128<Format, ranks>(mem, group, *launch.scratch, launch.message, launch.plan);
}

template <class Format, int ranks = 0, class Members = SimCta<false>, class Memory = SimMemory>
void add(std::vector<KernelRow>& rows, const char* name) {
  KernelRow row{};
  row.name = name;
  row.dtype = Format::Element::kDType;
  row.ranks = ranks;
  row.kernel = line_kernel<Format, ranks, Members, Memory>;
  row.scratch = ScratchKind::kLines;
  row.buffers = Ll128<SimMemory>::kBuffers;
  row.phases = 2;
  row.unit_bytes = Format::Unit::kBytes;
  row.slot_bytes = Ll128<SimMemory>::kSlotBytes;
  row.push = true;
  row.collective = Collective::kAllReduce;
  row.per_line = Format::kPerLine;
  row.lanes = Members::kLineLanes > 1;
  rows.push_back(row);
}

// A line passes for whole when one contribution is missing.
struct EarlyCount : LineFormat<Float32, false> {
  static uint32_t count_bits(int n) { return LineFormat<Float32, false>::count_bits(n > 1 ? n - 1 : n); }
};
// The count stays where the displaced element belongs.
struct DisplacedLost : LineFormat<Float32, false> {
  static void set(LinePart& part, int k, uint32_t bits) {
    if (k != 0 || part.words[0] != count_bits(2)) LineFormat<Float32, false>::set(part, k, bits);
  }
};

}  // namespace

void add_lines(std::vector<KernelRow>& rows) {
  add<LineFormat<Float32, false>>(rows, "two_shot_ll128");
  add<LineFormat<Float32, false>, 2>(rows, "two_shot_ll128");
  add<LineFormat<Float32, false>, 3>(rows, "two_shot_ll128");
  add<LineFormat<BFloat16, false>>(rows, "two_shot_ll128");
  add<LineFormat<Float16, false>>(rows, "two_shot_ll128");
  add<LineFormat<BFloat16, true>>(rows, "two_shot_ll128_wide");
  add<LineFormat<Float16, true>>(rows, "two_shot_ll128_wide");
  add<LineFormat<Float32, false>, 2, SimLanes, SimMemoryLanes>(rows, "two_shot_ll128_lanes");
  add<LineFormat<Float32, false>, 0, SimLanes, SimMemoryLanes>(rows, "two_shot_ll128_lanes");
  add<EarlyCount>(rows, "two_shot_ll128.early_count");
  add<DisplacedLost>(rows, "two_shot_ll128.displaced_lost");
}

}  // namespace llcoll::sim
