// Group policy of the simulator: the members of one simulated CTA.
#pragma once

#include "sim/world.h"

namespace llcoll::sim {

template <bool once>
struct SimCta {
  static constexpr bool kOnce = once;
  static constexpr bool kOneEpoch = once;
  Lane* lane;
  uint32_t rank;
  uint32_t size;
  uint32_t channel;
  uint32_t launch;
  uint32_t last_launch;
  mutable uint32_t loops = 0;

  explicit SimCta(Lane& l)
      : lane(&l),
        rank(l.thread.member),
        size(static_cast<uint32_t>(l.world.num_threads())),
        channel(l.thread.channel),
        launch(static_cast<uint32_t>(l.world.call_of(l.thread)) + 1),
        last_launch(l.world.last_launch(l.thread)) {}

  void sync() const {
    if (!lane->world.is(Mutant::kNoFlushBarrier)) lane->world.barrier(lane->thread, false);
  }
  bool any(bool value) const {
    if (lane->world.is(Mutant::kNoVoteBarrier) || lane->world.is(Mutant::kReaderIsNotSender)) return value;
    return lane->world.barrier(lane->thread, value);
  }
  // LL128: one member, which owns whole lines and polls alone, as a CPU thread does.
  static constexpr int kLineLanes = 1;
  uint32_t first_of_line(uint32_t x) const { return x; }
  bool line_is_together() const { return true; }
  static void sync_line() {}
  bool all_lanes(bool value) const { return value; }
  bool any_lane(bool value) const { return value; }
  // Pulls: words that all members see; barriers alone keep writers from readers.
  uint64_t& board(int k) const { return lane->world.board(lane->thread, k); }
  bool may_overlap() const { return last_launch != 0 && lane->world.has_launch_guard(); }
  void trigger() const { lane->world.trigger(lane->thread); }

  template <class F>
  void each(uint32_t n, F&& f) const {
    const uint32_t turn = lane->world.is(Mutant::kReaderIsNotSender) ? loops++ : 0;
    const uint32_t first = (rank + turn) % size;
    if constexpr (once) {
      if (first < n) f(first);
    } else {
      for (uint32_t i = first; i < n; i += size) f(i);
    }
  }
};

}  // namespace llcoll::sim
