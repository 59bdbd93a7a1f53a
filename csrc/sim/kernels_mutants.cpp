// Kernels with a planted mistake in the protocol; the names say which.
#include "sim/kernels.h"

namespace llcoll::sim {
namespace {

// Reads its input before the wait for the launch before, which may still be writing it.
struct EarlyInput {
  Message message;
  Bytes<8> units[8];
  template <class Unit, class Memory>
  Unit read(const Memory&, uint32_t i) const {
    return i < 8 ? units[i] : Unit{};
  }
  template <class Unit, class Memory>
  void write(const Memory& mem, uint32_t i, Unit value) const {
    message.write(mem, i, value);
  }
};
void early_input_kernel(Lane& lane) {
  SimMemory mem{&lane, 0};
  EarlyInput input{lane.launch.message, {}};
  for (uint32_t i = 0; i < 8 && i < input.message.wide_inputs; ++i) {
    input.units[i] = mem.read_early<Bytes<8>>(input.message.input + 8 * i);
  }
  lane.world.grid_wait(lane.thread);
  one_shot<Ll, Float32, 0>(mem, SimCta<false>(lane), *lane.launch.scratch, input, lane.launch.plan,
                           AnyOp{lane.launch.op});
}

// Clears before the wait. The wait makes the launch before visible, not what was done ahead of it.
void early_clear_kernel(Lane& lane) {
  SimMemory mem{&lane, 0};
  const Scratch& scratch = *lane.launch.scratch;
  Record record;
  mem.peek_record(scratch.record(lane.thread.channel), record);
  const uint64_t from = scratch.shape.slot_offset(record.buffer(), lane.thread.channel);
  for (uint32_t i = lane.thread.member; i < record.extent; i += static_cast<uint32_t>(lane.world.num_threads())) {
    mem.write_early(scratch.memory[scratch.rank] + from + i * 8, Bytes<8>{{kSentinelWord, kSentinelWord}});
  }
  lane.world.grid_wait(lane.thread);
  one_shot<SentinelNoClear, Float32, 0>(mem, SimCta<false>(lane), scratch, lane.launch.message, lane.launch.plan,
                                        AnyOp{lane.launch.op});
}

}  // namespace

void add_mutants(std::vector<KernelRow>& rows) {
  constexpr auto kLl = ScratchKind::kLl;
  constexpr auto kSentinel = ScratchKind::kSentinel;
  constexpr auto kFlag = ScratchKind::kFlag;
  add_mutant<LlFlagUnchecked, false>(rows, "one_shot_ll.flag_unchecked", kLl);
  add_mutant<LlEpoch32, false>(rows, "one_shot_ll.epoch_32", kLl);
  add_mutant<LlOneBuffer, false>(rows, "one_shot_ll.one_buffer", kLl);
  add_mutant<LlOneRegion, true>(rows, "two_shot_ll.one_region", kLl);
  add_mutant<SentinelTwoBuffers, false>(rows, "one_shot_sentinel.two_buffers", kSentinel);
  add_mutant<SentinelNoClear, false>(rows, "one_shot_sentinel.no_clear", kSentinel);
  add_mutant<SentinelClearsCurrent, false>(rows, "one_shot_sentinel.clears_current", kSentinel);
  add_mutant<SentinelClearsNext, false>(rows, "one_shot_sentinel.clears_next", kSentinel);
  add_mutant<SentinelClearsThisSize, false>(rows, "one_shot_sentinel.clears_this_size", kSentinel);
  add_mutant<SentinelClearsOnePhase, true>(rows, "two_shot_sentinel.clears_one_phase", kSentinel);
  add_mutant<SentinelRawInput, false>(rows, "one_shot_sentinel.raw_input", kSentinel);
  rows.push_back(
      row_of<SentinelRawResult, true, Float32AnyNan, 0, false, SimMemory>("two_shot_sentinel.raw_result", kSentinel));
  add_mutant<SentinelFirstWord, false>(rows, "one_shot_sentinel.first_word", kSentinel);
  add_mutant<FlagEqual, false>(rows, "one_shot_flag.equal", kFlag);
  add_mutant<Flag32, false>(rows, "one_shot_flag.flag_32", kFlag);
  add_mutant<FlagOneFewerBuffer, false>(rows, "one_shot_flag.one_buffer", kFlag);
  add_mutant<FlagOneFewerBuffer, false, SimMemoryAhead>(rows, "one_shot_flag_ahead.three_buffers", kFlag);
  add_exchange<Sentinel, Collective::kAllGather>(rows, "all_gather_ll.by_sentinel", kSentinel);
  KernelRow early = row_of<Ll, false, Float32, 0, false, SimMemory>("one_shot_ll.early_input", kLl);
  early.kernel = early_input_kernel;
  rows.push_back(early);
  early = row_of<SentinelNoClear, false, Float32, 0, false, SimMemory>("one_shot_sentinel.early_clear", kSentinel);
  early.kernel = early_clear_kernel;
  rows.push_back(early);
}

const std::vector<KernelRow>& kernel_rows() {
  static const std::vector<KernelRow> rows = [] {
    std::vector<KernelRow> all;
    add_shipped(all);
    add_exchanges(all);
    add_pulls(all);
    add_lines(all);
    add_buffers(all);
    add_mutants(all);
    return all;
  }();
  return rows;
}

}  // namespace llcoll::sim
