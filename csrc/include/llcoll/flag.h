// Flag: a rank stages data in its own memory, announces a whole chunk with one ready word per peer, and peers pull.
#pragma once

#include "llcoll/ll.h"

namespace llcoll {
inline namespace LLC_ISA {

// A memory may say kExchangesPlaces: where a line that two cores write in turn is dear to take back (coherent host
// memory), two ranks swap their staging areas each time around the buffers. A rank then stages over what it has itself
// just read, in lines that its own core holds.
template <class Memory>
inline constexpr bool kExchangesPlaces = requires {
  requires Memory::kExchangesPlaces;
};

template <class Memory>
struct Flag {
  using Unit = Bytes<Memory::kWidestUnit>;
  static constexpr int kSlotBytes = sizeof(Unit);
  static constexpr int kAhead = Memory::kFlagAhead;
  static constexpr int kBuffers = Memory::kFlagBuffers;
  static_assert(kBuffers >= 2 * (kAhead + 1), "one fewer lets a rank restage what a slow peer still pulls");
  static constexpr bool kPush = false;
  static constexpr bool kNeedsFence = false;

  template <class Type, class Group>
  struct Stage {
    const Memory& mem;
    const Group& group;
    const Scratch& scratch;
    uint64_t epoch;
    uint64_t base;
    uint32_t stride;
    // A function of the epoch alone, so both ranks agree. The writer of a slot is its last reader, or, where the
    // message that used it last was shorter, one who stages 2 * kBuffers epochs after its own last use: nothing unread
    // is lost.
    int swap = kExchangesPlaces<Memory> && scratch.shape.num_ranks == 2 ? static_cast<int>(epoch / kBuffers & 1) : 0;

    LLC_FN Unit* slot(int rank, uint32_t region, uint32_t i) const {
      char* memory = scratch.memory[kExchangesPlaces<Memory> ? rank ^ swap : rank];
      return reinterpret_cast<Unit*>(memory + base + (region * stride + i) * uint32_t{kSlotBytes});
    }
    // Two words by parity of the epoch: a peer that is one epoch ahead must not replace the word still awaited here.
    LLC_FN Packet* ready_word(int at_rank, int phase, int source) const {
      return reinterpret_cast<Packet*>(scratch.memory[at_rank] +
                                       scratch.shape.ready_offset(group.channel, phase, epoch & 1, source));
    }

    // Plain stores into this rank's own staging; ordered before the ready word by flush().
    LLC_FN void send(int, int peer, uint32_t i, Unit w) const { mem.put(slot(scratch.rank, pull_region(peer), i), w); }
    LLC_FN void bcast(int phase, uint32_t i, Unit w, int) const {
      mem.put(slot(scratch.rank, pull_region_for_all(phase, scratch.shape.num_ranks), i), w);
    }

    // Barrier, fence, then the word (release.sys as a whole): the flag must not overtake any member's data.
    LLC_FN void flush(int phase) const {
      group.sync();
      for (uint32_t peer = group.rank; peer < uint32_t(scratch.shape.num_ranks); peer += group.size) {
        if (int(peer) == scratch.rank) continue;
        mem.fence_release();
        mem.store_packet(ready_word(int(peer), phase, scratch.rank), Packet{0, epoch});
      }
    }
    // Polls relaxed, orders once: acquire fence, then the barrier hands it to the other members. Compared with >=: a
    // peer that ran ahead has replaced the word by a later one, which == would miss forever.
    LLC_FN bool ready(int phase) const {
      bool failed = false;
      for (uint32_t peer = group.rank; peer < uint32_t(scratch.shape.num_ranks); peer += group.size) {
        if (int(peer) == scratch.rank) continue;
        const Packet* word = ready_word(scratch.rank, phase, int(peer));
        failed |= !wait_until(
            mem, epoch, [&] { return static_cast<int64_t>(mem.load_packet(word).flag - epoch) >= 0; },
            [&] { return static_cast<int>(peer); });
        if (failed) break;
      }
      mem.fence_acquire();
      return !group.any(failed);
    }

    LLC_FN bool try_recv(int, int source, uint32_t i, Unit& w) const {
      w = mem.get(slot(source, pull_region(scratch.rank), i));
      return true;
    }
    LLC_FN bool try_recv_shared(int phase, int source, uint32_t i, Unit& w) const {
      w = mem.get(slot(source, pull_region_for_all(phase, scratch.shape.num_ranks), i));
      return true;
    }
    LLC_FN void retire(uint32_t, uint32_t) const {}
  };
};

}  // namespace LLC_ISA
}  // namespace llcoll
