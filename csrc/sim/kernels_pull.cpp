// The shipped flag algorithms that pull, with zero copy, and those that go by a multicast address.
#include "llcoll/pull.h"

#include "llcoll/ll_narrow.h"
#include "llcoll/multicast.h"
#include "sim/kernels.h"

namespace llcoll::sim {
namespace {

template <bool two, class Type, int ranks, bool at_once, class Memory>
void pull_kernel(Lane& lane) {
  Memory mem{&lane, 0};
  lane.world.grid_wait(lane.thread);
  if (lane.world.program().early_trigger) lane.world.trigger(lane.thread);
  const SimCta<false> group(lane);
  const Launch& launch = lane.launch;
  const AnyOp op{launch.op};
  if constexpr (two) {
    two_shot_pull<Type, ranks, at_once>(mem, group, *launch.scratch, launch.symmetric, launch.message, launch.plan, op);
  } else {
    one_shot_pull<Type, ranks, at_once>(mem, group, *launch.scratch, launch.symmetric, launch.message, launch.plan, op);
  }
}

template <bool two, class Type, int ranks, bool at_once = false, class Memory = SimMemory>
void add_pull(std::vector<KernelRow>& rows, const char* name) {
  KernelRow row{};
  row.name = name;
  row.dtype = Type::kDType;
  row.ranks = ranks;
  row.kernel = pull_kernel<two, Type, ranks, at_once, Memory>;
  row.scratch = ScratchKind::kPull;
  row.buffers = Pull<Memory>::kBuffers;
  row.phases = two ? 2 : 1;
  row.unit_bytes = Pull<Memory>::Unit::kBytes;
  row.slot_bytes = Pull<Memory>::kSlotBytes;
  row.collective = Collective::kAllReduce;
  rows.push_back(row);
}

// A multicast store reaches the sender's own region too, so that region has to be emptied like the others.
template <class Memory>
struct SentinelKeepsOwn : SentinelMulticast<Memory> {
  template <class Type, class Group>
  struct Stage : SentinelMulticast<Memory>::template Stage<Type, Group> {
    using Unit = typename Sentinel<Memory>::Unit;
    void retire(uint32_t extent, uint32_t buffer) const {
      const auto ranks = static_cast<uint32_t>(this->scratch.shape.num_ranks);
      const uint32_t region = extent / ranks;
      char* first =
          this->scratch.memory[this->scratch.rank] + this->scratch.shape.slot_offset(buffer, this->group.channel);
      const Unit empty{{kSentinelWord, kSentinelWord}};
      for (uint32_t i = this->group.rank; i < extent; i += this->group.size) {
        if (i / region != static_cast<uint32_t>(this->scratch.rank)) {
          this->mem.store_unit(reinterpret_cast<Unit*>(first) + i, empty);
        }
      }
    }
  };
};

}  // namespace

void add_pulls(std::vector<KernelRow>& rows) {
  add_pull<false, Float32, 0>(rows, "one_shot_pull");
  add_pull<false, Float32, 2>(rows, "one_shot_pull");
  add_pull<false, Float32, 3>(rows, "one_shot_pull");
  add_pull<false, BFloat16, 0>(rows, "one_shot_pull");
  add_pull<true, Float32, 0>(rows, "two_shot_pull");
  add_pull<true, Float32, 2>(rows, "two_shot_pull");
  add_pull<true, Float32, 3>(rows, "two_shot_pull");
  add_pull<true, BFloat16, 0>(rows, "two_shot_pull");
  add_pull<false, Float32, 0, true>(rows, "one_shot_pull_multicast");
  add_pull<true, Float32, 0, true>(rows, "two_shot_pull_multicast");
  add_float32<LlMulticast, false>(rows, "one_shot_ll_multicast", ScratchKind::kLl);
  add_float32<SentinelMulticast, false>(rows, "one_shot_sentinel_multicast", ScratchKind::kSentinel);
  add_float32<SentinelMulticast, true>(rows, "two_shot_sentinel_multicast", ScratchKind::kSentinel);
  add_mutant<SentinelKeepsOwn, false>(rows, "one_shot_sentinel_multicast.keeps_own", ScratchKind::kSentinel);
  add_float32<LlNarrow, false>(rows, "one_shot_narrow", ScratchKind::kNarrow);
  add_float32<LlNarrow, true>(rows, "two_shot_narrow", ScratchKind::kNarrow);
}

}  // namespace llcoll::sim
