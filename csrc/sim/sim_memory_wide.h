// What GPUs of a node can do besides: stores to all ranks at once, sums by the switch, additions to 128-byte lines.
#pragma once

#include "llcoll/element.h"
#include "llcoll/line.h"
#include "sim/add_words.h"
#include "sim/sim_memory.h"

namespace llcoll::sim {

template <class Base>
struct SimMemoryWide : Base {
  using Base::enter, Base::is, Base::machine, Base::order, Base::before_load, Base::lane;

  // One store that each rank's memory receives on its own: nothing orders the ranks, and a packet stays whole.
  void multicast_packet(Packet* at, Packet packet) const {
    at_each(at, [&](Packet* one) { this->store_packet(one, packet); });
  }
  void multicast_narrow(NarrowPacket* at, NarrowPacket packet) const {
    at_each(at, [&](NarrowPacket* one) { this->store_narrow(one, packet); });
  }
  template <class Unit>
  void multicast_unit(Unit* at, Unit value) const {
    at_each(at, [&](Unit* one) { this->store_unit(one, value); });
  }
  // Relaxed, in an order of the switch's own.
  template <class Type, class Unit>
  Unit multicast_sum(const Unit* at) const {
    static_assert(Type::kDType == DType::kFloat32);
    const int ranks = lane->world.program().ranks;
    const int first = ranks > 1 ? static_cast<int>(lane->world.choose(ChoiceKind::kThread, uint32_t(ranks))) : 0;
    Unit sum{};
    for (int k = 0; k < ranks; ++k) {
      const Unit one = this->load_unit(at_rank(at, (first + k) % ranks));
      for (int w = 0; w < Unit::kWords; ++w) {
        sum.words[w] = k == 0 ? one.words[w] : add_words<LineAdd::kFloat32>(sum.words[w], one.words[w]);
      }
    }
    return sum;
  }

  // A line is emptied part by part, each in one access; mutants leave that out or empty the wrong buffer.
  template <class Unit>
  void store_unit(Unit* at, Unit value) const {
    if (lane->launch.row->scratch != ScratchKind::kLines) return Base::store_unit(at, value);
    uint32_t word = enter(at, sizeof value);
    if (!lane->world.is_line(word)) {
      const bool clears = value.words[0] == kSentinelWord;
      if (!(clears && is(Mutant::kResultsNotCleared))) Base::store_unit(at, value);
      return;
    }
    if (is(Mutant::kLinesNotCleared)) return;
    if (is(Mutant::kLinesClearedLate)) word = lane->world.next_buffer_of_lines(word);
    machine().store(order(), word, Unit::kWords, value.words, Store::kStrong);
  }
  template <LineAdd add, int n>
  void add_parts(LinePart* line, uint32_t first, const LinePart (&parts)[n]) const {
    static_assert(n == kLineParts);
    const uint32_t word = enter(line + first, n * sizeof(LinePart));
    lane->world.begin_line_turn(lane->thread, word);
    machine().add_line(order(), word, n, &parts[0].words[0], add_words<add>);
    lane->world.end_line_turn(word);
  }
  template <int n>
  void load_parts(const LinePart* line, uint32_t first, LinePart (&parts)[n]) const {
    const uint32_t word = enter(line + first, n * sizeof(LinePart));
    before_load();
    machine().load_line(order(), word, n, &parts[0].words[0], !is(Mutant::kLineSplit));
  }
  int find_idle_peer() const { return 0; }

 private:
  template <class T>
  T* at_rank(T* at, int rank) const {
    const Launch& launch = lane->launch;
    char* memory = launch.buffer != nullptr ? launch.buffer->memory[rank] : launch.scratch->memory[rank];
    return reinterpret_cast<T*>(
        memory + (reinterpret_cast<uintptr_t>(at) - reinterpret_cast<uintptr_t>(World::multicast_base())));
  }
  template <class T, class Store>
  void at_each(T* at, Store&& store) const {
    for (int rank = 0; rank < lane->world.program().ranks; ++rank) store(at_rank(at, rank));
  }
};

using SimMemory = SimMemoryWide<SimMemoryOf<0, false>>;

}  // namespace llcoll::sim
