// Planted mistakes. Each breaks one rule that the protocols live by; tests/test_sim_mutants.py shows that the simulator
// reports every one. Those that change an access, a barrier or a launch are switches in the policies of the simulator;
// those that change a protocol are structs in mutant_protocols.h. The shipped headers know nothing of them.
#pragma once

#include <string>
#include <vector>

namespace llcoll::sim {

enum class Mutant {
  kNone,
  // Accesses
  kPacketInTwoWords,
  kFenceOff,
  kFenceReleaseOnly,
  kFenceAcquireOnly,
  kNoSecondFence,
  kFlagBeforeData,
  kNoAcquireAfterFlag,
  kNoSfence,
  // Groups
  kNoVoteBarrier,
  kNoFlushBarrier,
  kReaderIsNotSender,
  // State
  kOneRecordForAll,
  kHostEpoch,
  kTwoHandles,
  kExtentForgotten,
  kRegionsByGrid,
  kSharedScratch,
  kLateClear,
  kNoHello,
  kNoStreamEvent,
  kIdleEpoch,
  // Limits
  kSendOnAfterTimeout,
  // Dependent launch
  kNoGridWait,
  kStateBeforeWait,
  kSendBeforeWait,
  kOutputBeforeWait,
  kOneThreadNoWait,
  kNoLaunchGuard,
  kEarlyTrigger,
  // Pulls
  kNoReadyWait,
  kNoExit,
  kNoDone,
  kSourceNotSaid,
  kOneReadyWord,
  kOneStaging,
  kInPlaceEarly,
  // LL128
  kLinesNotCleared,
  kResultsNotCleared,
  kLinesClearedLate,
  kLineSplit,
  // Narrow flags
  kNoScrub,
  kCount,
};

inline const std::vector<std::string>& mutant_table() {
  static const std::vector<std::string> names = {
      "none",
      "packet_in_two_words",
      "fence_off",
      "fence_release_only",
      "fence_acquire_only",
      "no_second_fence",
      "flag_before_data",
      "no_acquire_after_flag",
      "no_sfence",
      "no_vote_barrier",
      "no_flush_barrier",
      "reader_is_not_sender",
      "one_record_for_all",
      "host_epoch",
      "two_handles",
      "extent_forgotten",
      "regions_by_grid",
      "shared_scratch",
      "late_clear",
      "no_hello",
      "no_stream_event",
      "idle_epoch",
      "send_on_after_timeout",
      "no_grid_wait",
      "state_before_wait",
      "send_before_wait",
      "output_before_wait",
      "one_thread_no_wait",
      "no_launch_guard",
      "early_trigger",
      "no_ready_wait",
      "no_exit",
      "no_done",
      "source_not_said",
      "one_ready_word",
      "one_staging",
      "in_place_early",
      "lines_not_cleared",
      "results_not_cleared",
      "lines_cleared_late",
      "line_split",
      "no_scrub",
  };
  return names;
}
static_assert(static_cast<int>(Mutant::kCount) == 42);

}  // namespace llcoll::sim
