// Rows: what the phase loops of a pull protocol do unit by unit, with every pointer found once per chunk. For one
// thread that is alone (Memory::kRows): there a unit's bookkeeping costs as much as its memory accesses, and a core
// whose window is full of bookkeeping has fewer lines on their way.
#pragma once

#include "llcoll/message.h"
#include "llcoll/reduce.h"

namespace llcoll {
inline namespace LLC_ISA {

template <class Memory>
inline constexpr bool kHasRows = requires {
  requires Memory::kRows;
};
template <class Protocol, class Memory>
inline constexpr bool kByRows = !Protocol::kPush && kHasRows<Memory>;

// Of the units [begin, begin + count), those before it can be accessed whole; `wide` is the message's limit.
LLC_FN uint32_t num_whole(uint32_t wide, uint32_t begin, uint32_t count) {
  return begin >= wide ? 0 : wide - begin < count ? wide - begin : count;
}

// Stages own units.
template <class Unit, class Memory, class Input>
LLC_FN void stage_row(const Memory& mem, const Input& message, uint32_t begin, uint32_t count, Unit* to) {
  const uint32_t whole = num_whole(message.wide_inputs, begin, count);
  const char* from = message.input + uint64_t{begin} * Unit::kBytes;
  for (uint32_t i = 0; i < whole; ++i) mem.put(to + i, mem.template read<Unit>(from + uint64_t{i} * Unit::kBytes));
  for (uint32_t i = whole; i < count; ++i) mem.put(to + i, message.template read<Unit>(mem, begin + i));
}

// Copies another rank's result into the output.
template <class Unit, class Memory, class Input>
LLC_FN void gather_row(const Memory& mem, const Input& message, uint32_t begin, uint32_t count, const Unit* from) {
  const uint32_t whole = num_whole(message.wide_outputs, begin, count);
  char* to = message.output + uint64_t{begin} * Unit::kBytes;
  for (uint32_t i = 0; i < whole; ++i) mem.write(to + uint64_t{i} * Unit::kBytes, mem.get(from + i));
  for (uint32_t i = whole; i < count; ++i) message.write(mem, begin + i, mem.get(from + i));
}

// The reduction of own units and of every peer's row, in rank order, into the output and to emit(i, result).
// row(source): where that rank staged them.
template <class Type, int ranks, class Unit, class Op, class Memory, class Input, class Row, class Emit>
LLC_FN void reduce_rows(const Memory& mem, const Input& message, uint32_t begin, uint32_t count, int rank,
                        int num_ranks, Op op, Row&& row, Emit&& emit) {
  const char* own = message.input + uint64_t{begin} * Unit::kBytes;
  char* to = message.output + uint64_t{begin} * Unit::kBytes;
  const Unit* rows[ranks == 0 ? kMaxRanks : ranks];
  for (int source = 0; source < num_ranks; ++source) rows[source] = source == rank ? nullptr : row(source);
  // unit_of(source, i); a lambda's type per rank of two keeps the choice out of the loop.
  auto reduce = [&](uint32_t first, uint32_t last, auto own_unit, auto write) {
    auto run = [&](auto unit_of) {
      for (uint32_t i = first; i < last; ++i) {
        if (ranks == 2 && last - i > Memory::kPrefetchUnits) mem.prefetch(rows[1 - rank] + i + Memory::kPrefetchUnits);
        Accumulator<Type, Op, Unit> sum(op);
        sum.first(unit_of(0, i));
        for (int source = 1; source < num_ranks; ++source) sum.next(unit_of(source, i));
        const Unit result = sum.result(num_ranks);
        write(i, result);
        emit(i, result);
      }
    };
    if constexpr (ranks == 2) {
      const Unit* other = rows[1 - rank];
      if (rank == 0) {
        run([&](int source, uint32_t i) { return source == 0 ? own_unit(i) : mem.get(other + i); });
      } else {
        run([&](int source, uint32_t i) { return source == 1 ? own_unit(i) : mem.get(other + i); });
      }
    } else {
      run([&](int source, uint32_t i) { return source == rank ? own_unit(i) : mem.get(rows[source] + i); });
    }
  };
  const uint32_t wide = message.wide_inputs < message.wide_outputs ? message.wide_inputs : message.wide_outputs;
  const uint32_t whole = num_whole(wide, begin, count);
  reduce(
      0, whole, [&](uint32_t i) { return mem.template read<Unit>(own + uint64_t{i} * Unit::kBytes); },
      [&](uint32_t i, Unit unit) { mem.write(to + uint64_t{i} * Unit::kBytes, unit); });
  reduce(
      whole, count, [&](uint32_t i) { return message.template read<Unit>(mem, begin + i); },
      [&](uint32_t i, Unit unit) { message.write(mem, begin + i, unit); });
}

}  // namespace LLC_ISA
}  // namespace llcoll
