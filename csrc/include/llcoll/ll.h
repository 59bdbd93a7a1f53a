// LL: the payload and its flag are one packet, so data announce themselves. Twice the bytes, no second access.
#pragma once

#include "llcoll/channel.h"
#include "llcoll/lanes.h"
#include "llcoll/wait.h"

namespace llcoll {
inline namespace LLC_ISA {

// A stage is one epoch of one channel. All protocols offer the same members to the algorithms:
//   send(phase, peer, i, w)      unit i for one peer          bcast(phase, i, w)      unit i for every peer
//   flush(phase)                 everything sent in `phase` is announced
//   ready(phase)                 false: a peer did not come; try_recv may be called only after true
//   try_recv(phase, source, i, w)          what `source` sent to this rank, true once it is there
//   try_recv_shared(phase, source, i, w)   the same for what `source` broadcast
//   retire(extent)               this channel has read the epoch's slots [0, extent)
// `phase` counts from 0; each has its own region. The stage of epoch e uses buffer e % kBuffers.
template <class Memory>
struct Ll {
  using Unit = Bytes<8>;
  static constexpr int kSlotBytes = sizeof(Packet);
  static constexpr int kBuffers = 2;  // 1 fails: the next epoch's packet replaces one that was not read yet
  static constexpr int kAhead = 0;
  static constexpr bool kPush = true;
  static constexpr bool kNeedsFence = false;

  template <class Type, class Group>
  struct Stage {
    const Memory& mem;
    const Group& group;
    const Scratch& scratch;
    uint64_t epoch;
    uint64_t base;  // bytes from the start of a rank's scratch to this epoch's slot 0
    uint32_t stride;

    LLC_FN uint64_t slot(uint32_t region, uint32_t i) const {
      return base + (region * stride + i) * uint32_t{kSlotBytes};
    }

    // relaxed.sys, one 16-byte access; pairs with the load in try_recv. The flag is the whole 64-bit epoch: an older
    // packet in this slot carries a smaller one, and it never wraps.
    LLC_FN void send(int phase, int peer, uint32_t i, Unit w) const {
      const uint32_t region = push_region(phase, scratch.rank, scratch.shape.num_ranks);
      mem.store_packet(reinterpret_cast<Packet*>(scratch.memory[peer] + slot(region, i)),
                       Packet{bits_as<uint64_t>(w), epoch});
    }
    LLC_FN void bcast(int phase, uint32_t i, Unit w, int num_ranks) const {
      LLC_UNROLL
      for (int peer = 0; peer < num_ranks; ++peer) {
        if (peer != scratch.rank) send(phase, peer, i, w);
      }
    }
    LLC_FN void flush(int) const {}
    LLC_FN bool ready(int) const { return true; }
    LLC_FN bool try_recv(int phase, int source, uint32_t i, Unit& w) const {
      const uint32_t region = push_region(phase, source, scratch.shape.num_ranks);
      const Packet p = mem.load_packet(reinterpret_cast<const Packet*>(scratch.memory[scratch.rank] + slot(region, i)));
      w = bits_as<Unit>(p.payload);
      return p.flag == epoch;
    }
    LLC_FN bool try_recv_shared(int phase, int source, uint32_t i, Unit& w) const {
      return try_recv(phase, source, i, w);
    }
    LLC_FN void retire(uint32_t, uint32_t) const {}
  };
};

}  // namespace LLC_ISA
}  // namespace llcoll
