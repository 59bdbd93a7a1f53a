// Memory policy for shared host memory: compiler atomics (a std::atomic function that is not inlined could be shared
// between instruction sets), bounded waits. g++ and clang only.
//
// Order on this side: x86 keeps stores in order and loads in order, so a packet is its payload, then a release store of
// its flag; relaxed polls cost what acquire polls cost.
#pragma once

#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "llcoll/lanes.h"
#include "llcoll/layout.h"

namespace llcoll {

// What a wait of this process needs besides the data; lives in the communicator and is compiled once, for the plain
// instruction set.
class HostWait {
 public:
  struct Patience {
    uint64_t start_ns = 0;  // 0: not slow yet
    uint32_t polls = 0;
    bool published = false;
    bool at_limit = false;
    bool warned = false;
  };
  virtual bool wait_on(Patience& patience, int source, uint64_t epoch) = 0;
  virtual void stop_waiting() = 0;
  virtual bool aborted() const = 0;
  // Polls between two calls of wait_on, less one; a power of two less one.
  uint32_t burst_mask = 63;

 protected:
  ~HostWait() = default;
};

inline namespace LLC_ISA {

// A unit as the registers that one access moves.
template <class Unit>
struct PiecesOf {
  static constexpr int kWidest = kVectorBytes == 0 ? 8 : kVectorBytes;
  static constexpr int kPieceBytes = int{sizeof(Unit)} < kWidest ? int{sizeof(Unit)} : kWidest;
  static constexpr int kCount = int{sizeof(Unit)} / kPieceBytes;
  static_assert(kPieceBytes * kCount == int{sizeof(Unit)});
  using Word = std::conditional_t<kPieceBytes == 4, uint32_t, long long>;
  typedef Lanes<Word, kPieceBytes / int{sizeof(Word)}> Piece __attribute__((may_alias));
  Piece pieces[kCount];
};

struct HostMemory {
  static constexpr int kWidestUnit = 64;
  // Chunks are staged one ahead, in as few buffers as that allows: they stay in the cores' own caches.
  static constexpr int kFlagAhead = 1;
  static constexpr int kFlagBuffers = 4;
  static constexpr bool kExchangesPlaces = true;
  static constexpr bool kRows = true;
  static constexpr uint32_t kPrefetchUnits = 32;  // where the work on a unit (bfloat16) keeps later loads back
  static constexpr int kPeerBatch = 1;  // peers that one item of a phase loop serves: one thread overlaps nothing
  static constexpr bool kGridEndReleases = false;
  using Patience = HostWait::Patience;

  HostWait* wait;

  LLC_FN void store_packet(Packet* at, Packet packet) const {
    __atomic_store_n(&at->payload, packet.payload, __ATOMIC_RELAXED);
    __atomic_store_n(&at->flag, packet.flag, __ATOMIC_RELEASE);
  }
  LLC_FN Packet load_packet(const Packet* at) const {
    Packet p;
    p.flag = __atomic_load_n(&at->flag, __ATOMIC_ACQUIRE);
    p.payload = __atomic_load_n(&at->payload, __ATOMIC_RELAXED);
    return p;
  }
  LLC_FN Packet load_packet_acquire(const Packet* at) const { return load_packet(at); }

  // One 8-byte access each.
  LLC_FN void store_narrow(NarrowPacket* at, NarrowPacket packet) const {
    __atomic_store_n(reinterpret_cast<uint64_t*>(at), __builtin_bit_cast(uint64_t, packet), __ATOMIC_RELEASE);
  }
  LLC_FN NarrowPacket load_narrow(const NarrowPacket* at) const {
    return __builtin_bit_cast(NarrowPacket, __atomic_load_n(reinterpret_cast<const uint64_t*>(at), __ATOMIC_ACQUIRE));
  }

  // Polled units, each piece in one access (volatile): the compiler neither keeps nor splits it. A word is never wider
  // than a piece; split, half a double could arrive beside half an empty slot.
  template <class Unit>
  LLC_FN void store_unit(Unit* at, Unit value) const {
    using Pieces = PiecesOf<Unit>;
    const Pieces from = __builtin_bit_cast(Pieces, value);
    auto* to = reinterpret_cast<volatile typename Pieces::Piece*>(at);
    LLC_UNROLL
    for (int k = 0; k < Pieces::kCount; ++k) to[k] = from.pieces[k];
  }
  template <class Unit>
  LLC_FN Unit load_unit(const Unit* at) const {
    using Pieces = PiecesOf<Unit>;
    Pieces to;
    auto* from = reinterpret_cast<const volatile typename Pieces::Piece*>(at);
    LLC_UNROLL
    for (int k = 0; k < Pieces::kCount; ++k) to.pieces[k] = from[k];
    return __builtin_bit_cast(Unit, to);
  }

  template <class Unit>
  LLC_FN void put(Unit* at, Unit value) const {
    *at = value;
  }
  template <class Unit>
  LLC_FN Unit get(const Unit* at) const {
    return *at;
  }

  LLC_FN void prefetch(const void* at) const { __builtin_prefetch(at); }

  LLC_FN void fence_release() const { __atomic_thread_fence(__ATOMIC_RELEASE); }
  LLC_FN void fence_acquire() const { __atomic_thread_fence(__ATOMIC_ACQUIRE); }
  LLC_FN void fence() const { __atomic_thread_fence(__ATOMIC_ACQ_REL); }

  template <class Unit>
  LLC_FN bool can_access(const char*) const {
    return true;
  }
  // A row of units at once; `num_bytes` need not be whole.
  template <class Unit>
  LLC_FN void put_row(Unit* at, const char* from, uint64_t num_bytes) const {
    std::memcpy(at, from, num_bytes);
  }
  LLC_FN void copy_row(char* to, const void* from, uint64_t num_bytes) const { std::memcpy(to, from, num_bytes); }
  template <class Unit>
  LLC_FN Unit read(const char* at) const {
    Unit value;
    std::memcpy(&value, at, sizeof(Unit));
    return value;
  }
  template <class Unit>
  LLC_FN void write(char* at, Unit value) const {
    std::memcpy(at, &value, sizeof(Unit));
  }
  template <class Unit>
  LLC_FN Unit read_part(const char* from, uint64_t offset, uint64_t num_bytes, uint32_t) const {
    Unit value{};
    if (offset < num_bytes) std::memcpy(&value, from + offset, part_bytes<Unit>(offset, num_bytes));
    return value;
  }
  template <class Unit>
  LLC_FN void write_part(char* to, uint64_t offset, uint64_t num_bytes, uint32_t, Unit value) const {
    if (offset < num_bytes) std::memcpy(to + offset, &value, part_bytes<Unit>(offset, num_bytes));
  }

  template <class R>
  LLC_FN R load_record(const R* at) const {
    return *at;
  }
  template <class R>
  LLC_FN void store_record(R* at, R record) const {
    *at = record;
  }
  LLC_FN Record await_record(const Record* at, uint32_t) const { return *at; }  // calls of one thread do not overlap

  LLC_FN bool load_abort() const { return wait->aborted(); }
  LLC_FN bool aborted(bool word) const { return word; }
  LLC_FN bool keep_polling(Patience& patience) const {
#if defined(__x86_64__)
    _mm_pause();
#endif
    return (++patience.polls & wait->burst_mask) != 0;
  }
  LLC_FN bool wait_on(Patience& patience, int source, uint64_t epoch) const {
    return wait->wait_on(patience, source, epoch);
  }
  LLC_FN void stop_waiting(const Patience& patience) const {
    if (patience.published) wait->stop_waiting();
  }

 private:
  template <class Unit>
  static LLC_FN size_t part_bytes(uint64_t offset, uint64_t num_bytes) {
    return num_bytes - offset < sizeof(Unit) ? num_bytes - offset : sizeof(Unit);
  }
};

}  // namespace LLC_ISA
}  // namespace llcoll
