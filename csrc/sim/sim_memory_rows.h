// What a CPU rank can do besides: whole rows at once (rows.h, exchange.h), one thread alone.
#pragma once

#include "sim/sim_memory.h"

namespace llcoll::sim {

template <class Base>
struct SimMemoryRowsOf : Base {
  using Base::lane;
  static constexpr bool kRows = true;
  static constexpr uint32_t kPrefetchUnits = 1;

  void prefetch(const void*) const {}
  template <class Unit>
  void put_row(Unit* at, const char* from, uint64_t num_bytes) const {
    for (uint64_t offset = 0; offset < num_bytes; offset += sizeof(Unit)) {
      const bool whole = offset + sizeof(Unit) <= num_bytes;
      this->put(at + offset / sizeof(Unit),
                whole ? this->template read<Unit>(from + offset)
                      : this->template read_part<Unit>(from, offset, num_bytes, element_bytes()));
    }
  }
  // `from` is a slot, of whole units, or the user's.
  void copy_row(char* to, const void* from, uint64_t num_bytes) const {
    using Unit = Bytes<Base::kWidestUnit>;
    for (uint64_t offset = 0; offset < num_bytes; offset += sizeof(Unit)) {
      const Unit unit = this->template read<Unit>(static_cast<const char*>(from) + offset);
      if (offset + sizeof(Unit) <= num_bytes) {
        this->write(to + offset, unit);
      } else {
        this->template write_part<Unit>(to, offset, num_bytes, element_bytes(), unit);
      }
    }
  }

 private:
  // Where user memory is modelled, elements have whole words.
  uint32_t element_bytes() const { return lane->world.program().model_user ? 4 : 1; }
};

// As the CPU runs it.
using SimMemoryRows = SimMemoryRowsOf<SimMemoryOf<1, false, true>>;

}  // namespace llcoll::sim
