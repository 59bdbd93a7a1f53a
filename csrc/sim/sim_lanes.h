// LL128 as a GPU runs it: eight members bring a part each. Where they are together their accesses are one access to the
// line; where they are not (a lane that read a partial unit comes late) each is one of its own, at a time of its own.
#pragma once

#include "sim/sim_group.h"
#include "sim/sim_memory_wide.h"

namespace llcoll::sim {

struct SimLanes : SimCta<false> {
  static constexpr int kLineLanes = kLineParts;
  using SimCta<false>::SimCta;

  bool line_is_together() const {
    Thread& thread = lane->thread;
    World& world = lane->world;
    world.meet(thread, line_of(thread), [&](Thread** lanes) {
      const bool together = world.choose(ChoiceKind::kThread, 3) != 0;
      for (int k = 0; k < kLineParts; ++k) lanes[k]->together = together;
    });
    return thread.together;
  }
  uint32_t first_of_line(uint32_t x) const {
    lane->thread.said = x;
    lane->world.meet(lane->thread, line_of(lane->thread), [&](Thread** lanes) {
      for (int k = 0; k < kLineParts; ++k) lanes[k]->got = lanes[0]->said;
    });
    return lane->thread.got;
  }
  // __syncwarp of the line's lanes: it orders memory.
  static void sync_line() {
    World& world = World::current();
    Thread& thread = world.running();
    world.meet(thread, line_of(thread), [&](Thread** lanes) {
      View all;
      world.machine().copy(all, lanes[0]->order.current);
      for (int k = 1; k < kLineParts; ++k) world.machine().join(all, lanes[k]->order.current);
      for (int k = 0; k < kLineParts; ++k) {
        world.machine().join(lanes[k]->order.current, all);
        lanes[k]->order.published = true;
      }
    });
  }
  bool all_lanes(bool value) const { return vote(value) == size; }
  bool any_lane(bool value) const { return vote(value) != 0; }

 private:
  static int line_of(const Thread& thread) { return thread.member / kLineParts; }
  uint32_t vote(bool value) const {
    lane->thread.said = value ? 1 : 0;
    lane->world.meet(lane->thread, kMaxLaneLines, [&](Thread** lanes) {
      uint32_t sum = 0;
      for (uint32_t k = 0; k < size; ++k) sum += lanes[k]->said;
      for (uint32_t k = 0; k < size; ++k) lanes[k]->got = sum;
    });
    return lane->thread.got;
  }
};

struct SimMemoryLanes : SimMemory {
  template <LineAdd add>
  void add_parts(LinePart* line, uint32_t first, const LinePart (&parts)[1]) const {
    bring(line + first);
    std::memcpy(lane->thread.part, parts[0].words, sizeof lane->thread.part);
    const auto one = [&](Thread& thread, uint32_t number) {
      machine().add_part(thread.order, thread.part_word, thread.part, add_words<add>, number);
    };
    if (!lane->thread.together) return one(lane->thread, machine().begin_addition());
    lane->world.meet(lane->thread, lane->thread.member / kLineParts, [&](Thread** lanes) {
      const uint32_t number = machine().begin_addition();
      for (int k = 0; k < kLineParts; ++k) one(*lanes[k], number);
    });
  }
  void load_parts(const LinePart* line, uint32_t first, LinePart (&parts)[1]) const {
    bring(line + first);
    before_load();
    Thread& thread = lane->thread;
    if (!thread.has_looked) thread.looked_at = machine().stores();
    thread.has_looked = true;
    if (!thread.together) {
      const auto part = static_cast<uint32_t>(thread.member) % kLineParts;
      machine().load_part(order(), thread.part_word - 4 * part, kLineParts, static_cast<int>(part), thread.part);
    } else {
      lane->world.meet(thread, thread.member / kLineParts, [&](Thread** lanes) {
        Ordering* orders[kLineParts];
        uint32_t words[4 * kLineParts];
        for (int k = 0; k < kLineParts; ++k) orders[k] = &lanes[k]->order;
        machine().load_parts(orders, lanes[0]->part_word, kLineParts, words);
        for (int k = 0; k < kLineParts; ++k) std::memcpy(lanes[k]->part, words + 4 * k, sizeof lanes[k]->part);
      });
    }
    std::memcpy(parts[0].words, thread.part, sizeof thread.part);
  }

  // One access for the warp: its lanes are together when a launch begins. Were they to differ, those that skip the
  // epoch would be missed in the others' votes.
  bool load_abort() const {
    lane->thread.said = SimMemory::load_abort() ? 1 : 0;
    lane->world.meet(lane->thread, kMaxLaneLines, [&](Thread** lanes) {
      for (int k = 0; k < lane->world.num_threads(); ++k) lanes[k]->got = lanes[0]->said;
    });
    return lane->thread.got != 0;
  }

  // Lanes that poll as one must all come to each vote: every poll ends a burst, and the vote tells who gave up.
  bool keep_polling(Patience&) const { return false; }
  bool wait_on(Patience&, int, uint64_t) const {
    const bool aborted = lane->world.program().timeouts != 0 && load_abort_word();
    if (!aborted && !lane->world.poll_failed(lane->thread)) return true;
    lane->world.give_up(lane->thread);
    return false;
  }

 private:
  void bring(const LinePart* at) const { lane->thread.part_word = enter(at, sizeof(LinePart)); }
};

}  // namespace llcoll::sim
