// Sentinel: a slot holds a reserved pattern until data lands; full bandwidth, no flag. Floating types only: a word of
// data that equals the pattern is a NaN, and is replaced by another NaN on every publish.
#pragma once

#include "llcoll/ll.h"
#include "llcoll/reduce.h"

namespace llcoll {
inline namespace LLC_ISA {

// Words are compared as bits, never as floats: a comparison that flushes subnormals would never end. The grain is the
// type's word: a finite double can have an all-ones half.
template <class Type, class Unit>
LLC_FN bool has_sentinel(Unit unit) {
  using Word = typename Type::Word;
  using W = Lanes<Word, kNumLanes<Word, Unit::kBytes>>;
  struct Split {
    W w[Unit::kBytes / sizeof(W)];
  };
  const Split in = bits_as<Split>(unit);
  bool found = false;
  LLC_UNROLL
  for (const W& w : in.w) {
    if constexpr (sizeof(W) == sizeof(Word)) {
      found |= w == ~Word{0};
    } else {
      const auto hits = w == ~Word{0};
      using Wide = Lanes<long long, sizeof(W) / 8>;
      const Wide wide = bits_as<Wide>(hits);
      for (unsigned lane = 0; lane < sizeof(W) / 8; ++lane) found |= wide[lane] != 0;
    }
  }
  return found;
}

template <class Type, class Unit>
LLC_FN Unit without_sentinel(Unit unit) {
  using Word = typename Type::Word;
  using W = Lanes<Word, kNumLanes<Word, Unit::kBytes>>;
  struct Split {
    W w[Unit::kBytes / sizeof(W)];
  };
  Split out = bits_as<Split>(unit);
  LLC_UNROLL
  for (W& w : out.w) w = choose(w == ~Word{0}, W{} + Type::kNan, w);
  return bits_as<Unit>(out);
}

template <class Memory>
struct Sentinel {
  using Unit = Bytes<Memory::kWidestUnit>;
  static constexpr int kSlotBytes = sizeof(Unit);
  static constexpr int kBuffers = 3;  // sent into, read from, cleared; 2 fail unless a slot is cleared when read
  static constexpr int kAhead = 0;
  static constexpr bool kPush = true;
  static constexpr bool kNeedsFence = true;  // clears of e before sends of e + 1, where one launch runs both

  template <class Type, class Group>
  struct Stage {
    const Memory& mem;
    const Group& group;
    const Scratch& scratch;
    uint64_t epoch;
    uint64_t base;
    uint32_t stride;

    LLC_FN Unit* slot(int rank, uint32_t region, uint32_t i) const {
      return reinterpret_cast<Unit*>(scratch.memory[rank] + base + (region * stride + i) * uint32_t{kSlotBytes});
    }

    // relaxed.sys per word; pairs with the load in try_recv. Words may arrive in any order: each tells for itself.
    LLC_FN void send(int phase, int peer, uint32_t i, Unit w) const {
      const uint32_t region = push_region(phase, scratch.rank, scratch.shape.num_ranks);
      mem.store_unit(slot(peer, region, i), without_sentinel<Type>(w));
    }
    LLC_FN void bcast(int phase, uint32_t i, Unit w, int num_ranks) const {
      const uint32_t region = push_region(phase, scratch.rank, scratch.shape.num_ranks);
      const Unit published = without_sentinel<Type>(w);
      LLC_UNROLL
      for (int peer = 0; peer < num_ranks; ++peer) {
        if (peer != scratch.rank) mem.store_unit(slot(peer, region, i), published);
      }
    }
    LLC_FN void flush(int) const {}
    LLC_FN bool ready(int) const { return true; }
    LLC_FN bool try_recv(int phase, int source, uint32_t i, Unit& w) const {
      w = mem.load_unit(slot(scratch.rank, push_region(phase, source, scratch.shape.num_ranks), i));
      return !has_sentinel<Type>(w);
    }
    LLC_FN bool try_recv_shared(int phase, int source, uint32_t i, Unit& w) const {
      return try_recv(phase, source, i, w);
    }

    // Clears what epoch e - 1 filled: its full extent, of its own layout; clearing only this call's size would hand
    // out old data after a long message. Peers write there again in e + 2, after they received this rank's e + 1,
    // which is sent behind this clear (kernel boundary, or the fence and barrier that end an epoch inside a launch).
    LLC_FN void retire(uint32_t previous_extent, uint32_t previous_buffer) const {
      Unit empty;
      LLC_UNROLL
      for (uint32_t& word : empty.words) word = kSentinelWord;
      char* first = scratch.memory[scratch.rank] + scratch.shape.slot_offset(previous_buffer, group.channel);
      for (uint32_t i = group.rank; i < previous_extent; i += group.size) {
        mem.store_unit(reinterpret_cast<Unit*>(first) + i, empty);
      }
    }
  };
};

}  // namespace LLC_ISA
}  // namespace llcoll
