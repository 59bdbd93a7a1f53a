// LL for links that keep only 8 bytes together (PCIe): a slot is two packets of 4 bytes of payload and a 4-byte flag.
// Same slots, same layout as Ll; what differs is how a slot is stored, and that its flag comes again.
#pragma once

#include "llcoll/ll.h"

namespace llcoll {
inline namespace LLC_ISA {

// 1 to 2^32 - 1 in turn; 0 is the flag of a cleared slot, and never sent.
LLC_FN uint32_t narrow_flag(uint64_t epoch) { return static_cast<uint32_t>(epoch % 0xFFFFFFFFu) + 1; }

template <class Memory>
struct LlNarrow {
  using Unit = Bytes<8>;
  static constexpr int kSlotBytes = 2 * sizeof(NarrowPacket);
  static constexpr int kBuffers = 3;  // sent into, read from, scrubbed
  static constexpr int kAhead = 0;
  static constexpr bool kPush = true;
  static constexpr bool kNeedsFence = true;  // scrubs of e before sends of e + 1, as sentinel's clears

  template <class Type, class Group>
  struct Stage {
    const Memory& mem;
    const Group& group;
    const Scratch& scratch;
    uint64_t epoch;
    uint64_t base;
    uint32_t stride;

    LLC_FN NarrowPacket* slot(int rank, uint32_t region, uint32_t i) const {
      return reinterpret_cast<NarrowPacket*>(scratch.memory[rank] + base +
                                             (region * stride + i) * uint32_t{kSlotBytes});
    }

    // relaxed.sys, two accesses of 8 bytes; each pairs with its own load in try_recv and tells for itself.
    LLC_FN void send(int phase, int peer, uint32_t i, Unit w) const {
      NarrowPacket* at = slot(peer, push_region(phase, scratch.rank, scratch.shape.num_ranks), i);
      const uint32_t flag = narrow_flag(epoch);
      mem.store_narrow(at, NarrowPacket{w.words[0], flag});
      mem.store_narrow(at + 1, NarrowPacket{w.words[1], flag});
    }
    LLC_FN void bcast(int phase, uint32_t i, Unit w, int num_ranks) const {
      for (int peer = 0; peer < num_ranks; ++peer) {
        if (peer != scratch.rank) send(phase, peer, i, w);
      }
    }
    LLC_FN void flush(int) const {}
    LLC_FN bool ready(int) const { return true; }
    LLC_FN bool try_recv(int phase, int source, uint32_t i, Unit& w) const {
      const NarrowPacket* at = slot(scratch.rank, push_region(phase, source, scratch.shape.num_ranks), i);
      const NarrowPacket low = mem.load_narrow(at), high = mem.load_narrow(at + 1);
      w.words[0] = low.payload;
      w.words[1] = high.payload;
      const uint32_t flag = narrow_flag(epoch);
      return low.flag == flag && high.flag == flag;
    }
    LLC_FN bool try_recv_shared(int phase, int source, uint32_t i, Unit& w) const {
      return try_recv(phase, source, i, w);
    }

    // A slot that nobody used for 2^32 - 1 epochs would pass its old packet for a new one: each epoch empties one more
    // slot of the buffer before, used or not, so that none stays that long. Peers write there again in e + 2, after
    // they received this rank's e + 1, which is sent behind this.
    LLC_FN void retire(uint32_t, uint32_t previous_buffer) const {
      if (group.rank != 0) return;
      const uint32_t turn = static_cast<uint32_t>(epoch / kBuffers % scratch.shape.slots_per_channel);
      char* first = scratch.memory[scratch.rank] + scratch.shape.slot_offset(previous_buffer, group.channel);
      NarrowPacket* at = reinterpret_cast<NarrowPacket*>(first + uint64_t{turn} * kSlotBytes);
      mem.store_narrow(at, NarrowPacket{});
      mem.store_narrow(at + 1, NarrowPacket{});
    }
  };
};

}  // namespace LLC_ISA
}  // namespace llcoll
