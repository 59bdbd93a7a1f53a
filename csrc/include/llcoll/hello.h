// Hello words: what keeps one-sided calls in step.
//
// A rank may send in epoch e only if it knows that each peer has started e - 1 (channel.h). Where every rank receives
// from each peer in every epoch, the data tell it. A broadcast, a reduce, an empty part or an idle channel does not:
// then each rank says hello(e) to each peer at the start of e and awaits every peer's before it ends e. An all-reduce
// in between does not repair a call that did not: its sends are already too early.
#pragma once

#include "llcoll/layout.h"
#include "llcoll/wait.h"

namespace llcoll {
inline namespace LLC_ISA {

// One epoch of one channel; every channel has words of its own. They lie where the flag protocol has the ready words of
// its second phase, which no call of one exchange uses: both only ever grow, so calls may follow each other freely.
template <class Memory, class Group>
struct Hello {
  const Memory& mem;
  const Group& group;
  const Scratch& scratch;
  uint64_t epoch;

  LLC_FN Packet* word(int at_rank, int source) const {
    return reinterpret_cast<Packet*>(scratch.memory[at_rank] +
                                     scratch.shape.ready_offset(group.channel, 1, epoch & 1, source));
  }

  // relaxed.sys, one access; pairs with the load in await(). Behind the kernel boundary or the group barrier that ended
  // the epoch before, so it says: this rank has read, and cleared, everything up to there. `more`: this rank needs
  // another epoch in this call.
  LLC_FN void send(bool more) const {
    for (uint32_t peer = group.rank; peer < uint32_t(scratch.shape.num_ranks); peer += group.size) {
      if (int(peer) != scratch.rank) mem.store_packet(word(int(peer), scratch.rank), Packet{more, epoch});
    }
  }

  // Compared with >=: a peer that ran ahead has replaced the word, which == would miss forever. It can have done so
  // only in a later call, so it needed no more epochs in this one. `more`: some peer of this member's does.
  LLC_FN bool await(bool& more) const {
    for (uint32_t peer = group.rank; peer < uint32_t(scratch.shape.num_ranks); peer += group.size) {
      if (int(peer) == scratch.rank) continue;
      const Packet* from = word(scratch.rank, int(peer));
      Packet seen{};
      const auto arrived = [&] {
        seen = mem.load_packet(from);
        return static_cast<int64_t>(seen.flag - epoch) >= 0;
      };
      if (!wait_until(mem, epoch, arrived, [&] { return static_cast<int>(peer); })) return false;
      more |= seen.flag == epoch && seen.payload != 0;
    }
    return true;
  }
};

}  // namespace LLC_ISA
}  // namespace llcoll
