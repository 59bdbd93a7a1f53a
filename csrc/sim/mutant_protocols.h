// Protocols with one planted mistake each: structs that inherit the shipped ones and replace one member.
#pragma once

#include "llcoll/flag.h"
#include "llcoll/ll.h"
#include "llcoll/sentinel.h"

namespace llcoll::sim {

// LL. Any packet passes once its flag was set (low_bits: once the low 32 bits of its flag are those of the epoch).
template <class Memory, bool low_bits>
struct LlMistaken : Ll<Memory> {
  template <class Type, class Group>
  struct Stage : Ll<Memory>::template Stage<Type, Group> {
    bool try_recv(int phase, int source, uint32_t i, typename Ll<Memory>::Unit& w) const {
      const uint32_t region = push_region(phase, source, this->scratch.shape.num_ranks);
      const char* at = this->scratch.memory[this->scratch.rank] + this->slot(region, i);
      const Packet p = this->mem.load_packet(reinterpret_cast<const Packet*>(at));
      w = bits_as<typename Ll<Memory>::Unit>(p.payload);
      return low_bits ? static_cast<uint32_t>(p.flag) == static_cast<uint32_t>(this->epoch) : p.flag != 0;
    }
    bool try_recv_shared(int phase, int source, uint32_t i, typename Ll<Memory>::Unit& w) const {
      return try_recv(phase, source, i, w);
    }
  };
};

template <class Memory>
struct LlFlagUnchecked : LlMistaken<Memory, false> {};
template <class Memory>
struct LlEpoch32 : LlMistaken<Memory, true> {};

template <class Memory>
struct LlOneBuffer : Ll<Memory> {
  static constexpr int kBuffers = 1;
};

// Two-shot: both phases in one region, so that a result replaces a contribution that was not read.
template <class P>
struct OneRegion : P {
  template <class Type, class Group>
  struct Stage : P::template Stage<Type, Group> {
    using Base = typename P::template Stage<Type, Group>;
    using Unit = typename P::Unit;
    void send(int, int peer, uint32_t i, Unit w) const { Base::send(0, peer, i, w); }
    void bcast(int, uint32_t i, Unit w, int num_ranks) const { Base::bcast(0, i, w, num_ranks); }
    bool try_recv(int, int source, uint32_t i, Unit& w) const { return Base::try_recv(0, source, i, w); }
    bool try_recv_shared(int, int source, uint32_t i, Unit& w) const { return Base::try_recv(0, source, i, w); }
  };
};
template <class Memory>
struct LlOneRegion : OneRegion<Ll<Memory>> {};

// Sentinel.
template <class Memory>
struct SentinelTwoBuffers : Sentinel<Memory> {
  static constexpr int kBuffers = 2;
};

template <class Memory>
struct SentinelNoClear : Sentinel<Memory> {
  template <class Type, class Group>
  struct Stage : Sentinel<Memory>::template Stage<Type, Group> {
    void retire(uint32_t, uint32_t) const {}
  };
};

// Clears what this epoch is receiving, or what the one before the last used, instead of what the last one used.
template <class Memory, int shift>
struct SentinelWrongClear : Sentinel<Memory> {
  template <class Type, class Group>
  struct Stage : Sentinel<Memory>::template Stage<Type, Group> {
    using Base = typename Sentinel<Memory>::template Stage<Type, Group>;
    void retire(uint32_t extent, uint32_t buffer) const { Base::retire(extent, (buffer + shift) % 3); }
  };
};
template <class Memory>
struct SentinelClearsCurrent : SentinelWrongClear<Memory, 1> {};
template <class Memory>
struct SentinelClearsNext : SentinelWrongClear<Memory, 2> {};

// Clears as much as this call sends, not what the last one filled.
template <class Memory>
struct SentinelClearsThisSize : Sentinel<Memory> {
  template <class Type, class Group>
  struct Stage : Sentinel<Memory>::template Stage<Type, Group> {
    using Base = typename Sentinel<Memory>::template Stage<Type, Group>;
    void retire(uint32_t extent, uint32_t buffer) const {
      const uint32_t now = static_cast<uint32_t>(this->scratch.shape.num_ranks) * this->stride;
      Base::retire(extent < now ? extent : now, buffer);
    }
  };
};

// Clears the first phase's region only.
template <class Memory>
struct SentinelClearsOnePhase : Sentinel<Memory> {
  template <class Type, class Group>
  struct Stage : Sentinel<Memory>::template Stage<Type, Group> {
    using Base = typename Sentinel<Memory>::template Stage<Type, Group>;
    void retire(uint32_t extent, uint32_t buffer) const { Base::retire(extent / 2, buffer); }
  };
};

// Publishes a word that equals the pattern.
template <class Memory>
struct SentinelRawInput : Sentinel<Memory> {
  template <class Type, class Group>
  struct Stage : Sentinel<Memory>::template Stage<Type, Group> {
    using Base = typename Sentinel<Memory>::template Stage<Type, Group>;
    using Unit = typename Sentinel<Memory>::Unit;
    void send(int phase, int peer, uint32_t i, Unit w) const {
      const uint32_t region = push_region(phase, this->scratch.rank, this->scratch.shape.num_ranks);
      this->mem.store_unit(this->slot(peer, region, i), w);
    }
    void bcast(int phase, uint32_t i, Unit w, int num_ranks) const {
      for (int peer = 0; peer < num_ranks; ++peer) {
        if (peer != this->scratch.rank) send(phase, peer, i, w);
      }
    }
  };
};
// The same for results only, of a type that keeps a NaN's bits.
template <class Memory>
struct SentinelRawResult : Sentinel<Memory> {
  template <class Type, class Group>
  struct Stage : Sentinel<Memory>::template Stage<Type, Group> {
    using Unit = typename Sentinel<Memory>::Unit;
    void bcast(int phase, uint32_t i, Unit w, int num_ranks) const {
      const uint32_t region = push_region(phase, this->scratch.rank, this->scratch.shape.num_ranks);
      for (int peer = 0; peer < num_ranks; ++peer) {
        if (peer != this->scratch.rank) this->mem.store_unit(this->slot(peer, region, i), w);
      }
    }
  };
};
struct Float32AnyNan : Float32 {
  template <class W>
  static W pack(Acc<W> a, int) {
    return bits_as<W>(a);
  }
};

// Takes a unit for complete when its first word has come.
template <class Memory>
struct SentinelFirstWord : Sentinel<Memory> {
  template <class Type, class Group>
  struct Stage : Sentinel<Memory>::template Stage<Type, Group> {
    using Unit = typename Sentinel<Memory>::Unit;
    bool try_recv(int phase, int source, uint32_t i, Unit& w) const {
      const uint32_t region = push_region(phase, source, this->scratch.shape.num_ranks);
      w = this->mem.load_unit(this->slot(this->scratch.rank, region, i));
      return w.words[0] != kSentinelWord;
    }
    bool try_recv_shared(int phase, int source, uint32_t i, Unit& w) const { return try_recv(phase, source, i, w); }
  };
};

// Flag.
template <class Memory, bool equal, bool parity, bool wide>
struct FlagMistaken : Flag<Memory> {
  template <class Type, class Group>
  struct Stage : Flag<Memory>::template Stage<Type, Group> {
    using Base = typename Flag<Memory>::template Stage<Type, Group>;
    Packet* word(int at_rank, int phase, int source) const {
      const auto& shape = this->scratch.shape;
      const uint64_t at = shape.ready_offset(this->group.channel, phase, parity ? this->epoch & 1 : 0, source);
      return reinterpret_cast<Packet*>(this->scratch.memory[at_rank] + at);
    }
    void flush(int phase) const {
      this->group.sync();
      for (uint32_t peer = this->group.rank; peer < uint32_t(this->scratch.shape.num_ranks); peer += this->group.size) {
        if (int(peer) == this->scratch.rank) continue;
        this->mem.fence_release();
        this->mem.store_packet(word(int(peer), phase, this->scratch.rank), Packet{0, this->epoch});
      }
    }
    bool ready(int phase) const {
      bool failed = false;
      for (uint32_t peer = this->group.rank; peer < uint32_t(this->scratch.shape.num_ranks); peer += this->group.size) {
        if (int(peer) == this->scratch.rank) continue;
        const Packet* at = word(this->scratch.rank, phase, int(peer));
        failed |= !wait_until(
            this->mem, this->epoch, [&] { return arrived(this->mem.load_packet(at).flag, this->epoch); },
            [&] { return static_cast<int>(peer); });
        if (failed) break;
      }
      this->mem.fence_acquire();
      return !this->group.any(failed);
    }
    static bool arrived(uint64_t flag, uint64_t epoch) {
      if (equal) return flag == epoch;
      if (!wide) return static_cast<uint32_t>(flag) >= static_cast<uint32_t>(epoch);
      return static_cast<int64_t>(flag - epoch) >= 0;
    }
  };
};
template <class Memory>
struct FlagEqual : FlagMistaken<Memory, true, false, true> {};
template <class Memory>
struct Flag32 : FlagMistaken<Memory, false, true, false> {};
template <class Memory>
struct FlagOneFewerBuffer : Flag<Memory> {
  static constexpr int kBuffers = Memory::kFlagBuffers - 1;
};

}  // namespace llcoll::sim
