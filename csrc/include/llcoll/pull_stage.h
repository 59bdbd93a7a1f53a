// Flag all-reduce that pulls, with zero copy: a rank's peers read its input straight from the group's symmetric pool
// where it lies there, and from its staging where not. Each rank decides for itself, by its own pointers; what its
// peers do about it follows from its ready word alone, so ranks may differ.
//
//   phase 0   ready: the input may be read, and (two-shot) the output may be written; says where both lie
//   phase 1   two-shot: this rank's part of the result lies where it belongs, and its pulls are over
//   kDone     one-shot: this rank's pulls are over; sent only to peers whose ready word said symmetric
//
// A rank whose ready word said symmetric awaits every peer's last word before it leaves: its next kernel may overwrite
// the input. Staging needs no such exit: two buffers, and ready(e + 1) says that the pulls of e are over.
#pragma once

#include <type_traits>

#include "llcoll/one_shot.h"

namespace llcoll {
inline namespace LLC_ISA {

inline constexpr int kDone = 2;
static_assert(kDone < kNumPhases);

// Units that a member keeps in flight per source. Registers bound it: kUnroll * ranks units are held at once.
template <int ranks>
inline constexpr int kPullUnroll = ranks == 0 ? 2 : (ranks > 4 ? 1 : 4);

template <class Memory>
struct Pull {
  using Unit = Bytes<Memory::kWidestUnit>;
  static constexpr int kSlotBytes = sizeof(Unit);
  static constexpr int kAhead = 0;
  static constexpr int kBuffers = 2;  // 1 lets a rank restage what a slow peer still pulls
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

    LLC_FN Unit* staged(int rank, uint32_t region) const {
      return reinterpret_cast<Unit*>(scratch.memory[rank] + base) + uint64_t{region} * stride;
    }
    // Two words by parity of the epoch: a peer one epoch ahead must not replace the source that is still awaited here.
    LLC_FN Packet* word(int at_rank, int phase, int source) const {
      return reinterpret_cast<Packet*>(scratch.memory[at_rank] +
                                       scratch.shape.ready_offset(group.channel, phase, epoch & 1, source));
    }
    // (what, epoch) in one access to every peer for which to(peer) holds; release.sys as a whole, pairs with poll().
    // Cumulative: behind a group barrier it covers what every member did. `last_word`: what peers take for the end of
    // this rank's pulls, or for its result, is not said once the group has failed: a peer that gave up has its input
    // back and may have changed it under them. False then.
    // `by_multicast`: one store to all ranks, this one too; `to` must hold for all.
    template <bool by_multicast = false, class To>
    LLC_FN bool announce(int phase, uint64_t what, bool fenced, bool last_word, To&& to) const {
      if (group.rank >= (by_multicast ? 1 : uint32_t(scratch.shape.num_ranks))) return true;
      auto abort_word = decltype(mem.load_abort()){};
      if (last_word) abort_word = mem.load_abort();  // under way while the fence is
      if (fenced) mem.fence_release();
      if (last_word && mem.aborted(abort_word)) return false;
      if constexpr (by_multicast) {
        const uint64_t offset = scratch.shape.ready_offset(group.channel, phase, epoch & 1, scratch.rank);
        mem.multicast_packet(reinterpret_cast<Packet*>(scratch.multicast + offset), Packet{what, epoch});
      } else {
        for (uint32_t peer = group.rank; peer < uint32_t(scratch.shape.num_ranks); peer += group.size) {
          if (int(peer) != scratch.rank && to(int(peer))) {
            mem.store_packet(word(int(peer), phase, scratch.rank), Packet{what, epoch});
          }
        }
      }
      return true;
    }
    // Awaits every peer's word; seen(peer, what) runs on the one member that polled it. Acquire; a barrier must hand it
    // to the other members. Compared with >=, as a signed difference.
    template <class Seen>
    LLC_FN bool poll(int phase, Seen&& seen) const {
      for (uint32_t peer = group.rank; peer < uint32_t(scratch.shape.num_ranks); peer += group.size) {
        if (int(peer) == scratch.rank) continue;
        Packet packet{};
        const Packet* at = word(scratch.rank, phase, int(peer));
        const bool arrived = wait_until(
            mem, epoch,
            [&] {
              packet = mem.load_packet_acquire(at);
              return static_cast<int64_t>(packet.flag - epoch) >= 0;
            },
            [&] { return static_cast<int>(peer); });
        if (!arrived) return false;
        seen(int(peer), packet.payload);
      }
      return true;
    }
    LLC_FN void retire(uint32_t, uint32_t) const {}
  };
};

// What the member that saw a peer's word leaves for all: where its input is read, where its output is written.
template <class Group>
struct Places {
  const Group& group;
  LLC_FN uint64_t& input(int rank) const { return group.board(rank); }
  LLC_FN uint64_t& output(int rank) const { return group.board(kMaxRanks + rank); }
};

LLC_FN uint64_t place_address(const Scratch& scratch, const Symmetric& symmetric, int rank, uint32_t place) {
  return reinterpret_cast<uint64_t>(scratch.memory[rank]) + symmetric.pool_offset + uint64_t{place - 1} * kPlaceBytes;
}

// f(i, k) for the units of one pass.
template <int num_batch, class Group, class F>
LLC_FN void each_of_pass(const Group& group, uint32_t base, uint32_t count, F&& f) {
  LLC_UNROLL
  for (int k = 0; k < num_batch; ++k) {
    if (base + k * group.size < count) f(base + k * group.size, k);
  }
}

// One pass: units base, base + size, ... (num_batch of them) below count, summed in rank order. All loads of a batch of
// ranks are issued before the first is used.
template <class Type, int ranks, int num_batch, class Op, class Memory, class Group, class Unit>
LLC_FN void pull_and_reduce(const Memory& mem, const Group& group, int num_ranks, uint32_t base, uint32_t count, Op op,
                            Unit (&sums)[num_batch]) {
  constexpr int kRanks = ranks == 0 ? 4 : ranks;
  const Places<Group> places{group};
  Accumulator<Type, Op, Unit> acc[num_batch];
  LLC_UNROLL
  for (auto& a : acc) a = Accumulator<Type, Op, Unit>(op);
  for (int first = 0; first < num_ranks; first += kRanks) {
    Unit units[num_batch][kRanks];
    each_of_pass<num_batch>(group, base, count, [&](uint32_t i, int k) {
      LLC_UNROLL
      for (int s = 0; s < kRanks; ++s) {
        if (ranks == 0 && first + s >= num_ranks) break;
        units[k][s] = mem.get(reinterpret_cast<const Unit*>(places.input(first + s)) + i);
      }
    });
    LLC_UNROLL
    for (int k = 0; k < num_batch; ++k) {
      LLC_UNROLL
      for (int s = 0; s < kRanks; ++s) {
        if (ranks == 0 && first + s >= num_ranks) break;
        if (first + s == 0) {
          acc[k].first(units[k][s]);
        } else {
          acc[k].next(units[k][s]);
        }
      }
    }
  }
  LLC_UNROLL
  for (int k = 0; k < num_batch; ++k) sums[k] = acc[k].result(num_ranks);
}

// Moves units of several parts, a member's loads of a batch of parts in flight together: read(part, i), then
// write(part, i, unit). count(part): how many units a part has here, at most max_count.
template <int ranks, class Unit, class Group, class Count, class Read, class Write>
LLC_FN void move_parts(const Group& group, int num_parts, uint32_t max_count, Count&& count, Read&& read,
                       Write&& write) {
  constexpr int kParts = ranks == 0 ? 4 : ranks;
  constexpr int kUnroll = kPullUnroll<ranks>;
  for (int first = 0; first < num_parts; first += kParts) {
    for (uint32_t base = group.rank; base < max_count; base += kUnroll * group.size) {
      Unit units[kParts][kUnroll];
      LLC_UNROLL
      for (int p = 0; p < kParts; ++p) {
        if (first + p >= num_parts) break;
        each_of_pass<kUnroll>(group, base, count(first + p),
                              [&](uint32_t i, int k) { units[p][k] = read(first + p, i); });
      }
      LLC_UNROLL
      for (int p = 0; p < kParts; ++p) {
        if (first + p >= num_parts) break;
        each_of_pass<kUnroll>(group, base, count(first + p),
                              [&](uint32_t i, int k) { write(first + p, i, units[p][k]); });
      }
    }
  }
}

// The same one unit at a time: messages off alignment and tails, kept small.
template <class Group, class Count, class Move>
LLC_FN void move_slowly(const Group& group, int num_parts, Count&& count, Move&& move) {
  for (int part = 0; part < num_parts; ++part) {
    const uint32_t n = count(part);
    for (uint32_t i = group.rank; i < n; i += group.size) move(part, i);
  }
}

}  // namespace LLC_ISA
}  // namespace llcoll
