// Memory policy of the simulator: what device_memory.cuh promises, and no more. A packet is one access; everything else
// travels in pieces of `grain` bytes. Mutants of the accesses are switched here.
#pragma once

#include <cstring>

#include "llcoll/layout.h"
#include "sim/world.h"

namespace llcoll::sim {

// `swaps`: two ranks exchange their staging areas, as on CPU (flag.h).
template <int ahead, bool streaming, bool swaps = false>
struct SimMemoryOf {
  static constexpr int kWidestUnit = 8;  // two words, so that a unit can be seen half
  static constexpr bool kExchangesPlaces = swaps;
  static constexpr int kPeerBatch = 2;
  static constexpr int kFlagAhead = ahead;
  static constexpr int kFlagBuffers = 2 * (ahead + 1);  // the fewest that are right
  static constexpr bool kGridEndReleases = ahead == 0;  // as on CUDA; on CPU nothing ends
  struct Patience {};

  Lane* lane;
  mutable uint32_t fences = 0;

  void store_packet(Packet* at, Packet packet) const {
    const uint32_t word = enter(at, sizeof packet);
    uint32_t words[4];
    std::memcpy(words, &packet, sizeof words);
    if (is(Mutant::kPacketInTwoWords)) {
      machine().store(order(), word, 2, words, Store::kStrong);
      machine().store(order(), word + 2, 2, words + 2, Store::kStrong);
    } else {
      machine().store(order(), word, 4, words, Store::kStrong);
    }
  }
  Packet load_packet(const Packet* at) const {
    const uint32_t word = enter(at, sizeof(Packet));
    uint32_t words[4];
    before_load();
    if (is(Mutant::kPacketInTwoWords)) {
      machine().load(order(), word, 2, true, words);
      machine().load(order(), word + 2, 2, true, words + 2);
    } else {
      machine().load(order(), word, 4, true, words);
    }
    Packet packet;
    std::memcpy(&packet, words, sizeof packet);
    return packet;
  }

  // An acquire for this one message. Mutants pass over ready words of pulls, or over what they say.
  Packet load_packet_acquire(const Packet* at) const {
    const uint32_t word = enter(at, sizeof(Packet));
    const int phase = lane->world.ready_phase(word);
    const Symmetric& own = lane->launch.symmetric;
    const uint64_t places = own.input | uint64_t{own.output} << 32;
    constexpr uint64_t kFarAhead = uint64_t{1} << 62;
    if (phase == 0 && is(Mutant::kNoReadyWait)) return {places, kFarAhead};
    if (phase == 1 && is(Mutant::kNoExit)) return {0, kFarAhead};
    if (phase == 2 && is(Mutant::kNoDone)) return {0, kFarAhead};
    uint32_t words[4];
    before_load();
    machine().load(order(), word, 4, true, words, !is(Mutant::kNoAcquireAfterFlag));
    Packet packet;
    std::memcpy(&packet, words, sizeof packet);
    if (phase == 0 && is(Mutant::kSourceNotSaid)) packet.payload = places;
    return packet;
  }

  // One access of 8 bytes.
  void store_narrow(NarrowPacket* at, NarrowPacket packet) const {
    if (is(Mutant::kNoScrub) && packet.flag == 0) return;
    const uint32_t words[2] = {packet.payload, packet.flag};
    machine().store(order(), enter(at, sizeof packet), 2, words, Store::kStrong);
  }
  NarrowPacket load_narrow(const NarrowPacket* at) const {
    const uint32_t word = enter(at, sizeof(NarrowPacket));
    uint32_t words[2];
    before_load();
    machine().load(order(), word, 2, true, words);
    return {words[0], words[1]};
  }

  template <class Unit>
  void store_unit(Unit* at, Unit value) const {
    store_pieces(enter(at, sizeof value), value, Store::kStrong);
  }
  template <class Unit>
  Unit load_unit(const Unit* at) const {
    const uint32_t word = enter(at, sizeof(Unit));
    before_load();
    return load_pieces<Unit>(word, true);
  }
  template <class Unit>
  void put(Unit* at, Unit value) const {
    store_pieces(enter(at, sizeof value), value, streaming ? Store::kStreaming : Store::kPlain);
  }
  template <class Unit>
  Unit get(const Unit* at) const {
    const uint32_t word = enter(at, sizeof(Unit));
    before_load();
    return load_pieces<Unit>(word, false);
  }

  void fence_release() const {
    if (is(Mutant::kFlagBeforeData)) return;
    if (streaming && !is(Mutant::kNoSfence)) machine().sfence(order());
    machine().fence_release(order());
  }
  void fence_acquire() const {
    if (!is(Mutant::kNoAcquireAfterFlag)) machine().fence_acquire(order());
  }
  void fence() const {
    if (is(Mutant::kFenceOff)) return;
    if (is(Mutant::kNoSecondFence) && fences++ % 2 == 1) return;
    if (!is(Mutant::kFenceReleaseOnly)) machine().fence_acquire(order());
    if (!is(Mutant::kFenceAcquireOnly)) machine().fence_release(order());
  }

  // The user's memory.
  template <class Unit>
  bool can_access(const char* at) const {
    return reinterpret_cast<uintptr_t>(at) % 4 == 0;
  }
  template <class Unit>
  Unit read(const char* at) const {
    const uint32_t word = lane->world.word_of(at, sizeof(Unit), lane->thread);
    Unit value;
    if (lane->world.is_raw(word)) {
      std::memcpy(&value, lane->world.raw(word), sizeof value);
      return value;
    }
    if (!is(Mutant::kSendBeforeWait)) lane->world.grid_wait(lane->thread);
    before_load();
    return load_pieces<Unit>(word, false);
  }
  template <class Unit>
  void write(char* at, Unit value) const {
    const uint32_t word = enter(at, sizeof value);
    if (lane->world.is_raw(word)) {
      std::memcpy(lane->world.raw(word), &value, sizeof value);
    } else {
      store_pieces(word, value, Store::kPlain);
    }
  }
  // For the mutants that touch user memory too early.
  template <class Unit>
  Unit read_early(const char* at) const {
    before_load();
    return load_pieces<Unit>(lane->world.word_of(at, sizeof(Unit), lane->thread), false);
  }
  template <class Unit>
  void write_early(char* at, Unit value) const {
    store_pieces(lane->world.word_of(at, sizeof value, lane->thread), value, Store::kPlain);
  }
  void peek_record(const Record* at, Record& record) const {
    uint32_t words[4];
    before_load();
    machine().load(order(), lane->world.word_of(at, sizeof record, lane->thread), 4, false, words);
    std::memcpy(&record, words, sizeof record);
  }
  // Word by word where user memory is modelled: then elements have 4 bytes or more.
  template <class Unit>
  Unit read_part(const char* from, uint64_t offset, uint64_t num_bytes, uint32_t element_bytes) const {
    Unit value{};
    char bytes[sizeof(Unit)] = {};
    for (uint64_t b = 0; b < sizeof(Unit) && offset + b < num_bytes; b += element_bytes) {
      read_element(from + offset + b, element_bytes, bytes + b);
    }
    std::memcpy(&value, bytes, sizeof value);
    return value;
  }
  template <class Unit>
  void write_part(char* to, uint64_t offset, uint64_t num_bytes, uint32_t element_bytes, Unit value) const {
    char bytes[sizeof(Unit)];
    std::memcpy(bytes, &value, sizeof value);
    for (uint64_t b = 0; b < sizeof(Unit) && offset + b < num_bytes; b += element_bytes) {
      write_element(to + offset + b, element_bytes, bytes + b);
    }
  }

  Record load_record(const Record* at) const {
    if (!is(Mutant::kStateBeforeWait) && !is(Mutant::kSendBeforeWait)) lane->world.grid_wait(lane->thread);
    const uint32_t word = lane->world.word_of(place_of(at), sizeof(Record), lane->thread);
    uint32_t words[4];
    before_load();
    machine().load(order(), word, 4, true, words);
    Record record;
    std::memcpy(&record, words, sizeof record);
    const uint64_t start = lane->world.program().first_epoch;
    bool failed = record.buffer() == Record::kFailed;
    if (is(Mutant::kHostEpoch)) record = Record::make(start, record.extent, failed ? Record::kFailed : 0);
    if (is(Mutant::kExtentForgotten)) record.extent = 0;
    if (is(Mutant::kSendOnAfterTimeout) && failed) {
      record =
          Record::make(record.epoch, record.extent, static_cast<uint32_t>(record.epoch % lane->launch.row->buffers));
      failed = false;
    }
    if (failed) lane->world.mark_failed(lane->thread);
    // Premise (time, not order): a launch whose record is seen has ended, since a whole kernel ran in between.
    if (lane->world.has_launch_guard() && record.launch() != 0 &&
        record.launch() == lane->world.last_launch(lane->thread)) {
      lane->world.await_end(lane->thread, record.launch());
    }
    return record;
  }
  void store_record(Record* at, Record record) const {
    const uint32_t word = enter(place_of(at), sizeof record);
    uint32_t words[4];
    std::memcpy(words, &record, sizeof words);
    machine().store(order(), word, 4, words, Store::kPlain);
  }

  // Of an LLBuffer. It knows no launch ids: its kernels wait for each other.
  BufferRecord load_record(const BufferRecord* at) const {
    const uint32_t word = enter(place_of(at), sizeof(BufferRecord));
    uint32_t words[4];
    before_load();
    machine().load(order(), word, 4, true, words);
    BufferRecord record;
    std::memcpy(&record, words, sizeof record);
    if (is(Mutant::kSendOnAfterTimeout)) record.failed = 0;
    if (record.failed != 0) lane->world.mark_failed(lane->thread);
    return record;
  }
  void store_record(BufferRecord* at, BufferRecord record) const {
    uint32_t words[4];
    std::memcpy(words, &record, sizeof words);
    machine().store(order(), enter(place_of(at), sizeof record), 4, words, Store::kPlain);
  }

  // On CUDA the launch before has a little time left to end, once it has written its record; here it has ended.
  Record await_record(const Record* at, uint32_t launch) const {
    while (load_record(at).launch() != launch) {
      if (lane->world.poll_failed(lane->thread)) break;
    }
    lane->world.await_end(lane->thread, launch);
    return load_record(at);
  }
  bool load_abort() const {
    return lane->world.program().timeouts != 0 && !is(Mutant::kSendOnAfterTimeout) && load_abort_word();
  }
  bool aborted(bool seen) const {
    if (seen) lane->world.mark_failed(lane->thread);
    return seen;
  }
  // False: this wait is over.
  bool keep_polling(Patience&) const {
    lane->world.grid_wait(lane->thread);
    if (lane->world.program().timeouts != 0 && load_abort_word()) return false;
    return !lane->world.poll_failed(lane->thread);
  }
  bool wait_on(Patience&, int, uint64_t) const {
    lane->world.give_up(lane->thread);
    return false;
  }
  void stop_waiting(const Patience&) const {}

 protected:
  bool is(Mutant mutant) const { return lane->world.is(mutant); }
  Machine& machine() const { return lane->world.machine(); }
  Ordering& order() const { return lane->thread.order; }

  // Everything that touches state or slots comes after the wait for the launch before, except in the mutants.
  uint32_t enter(const void* at, size_t bytes) const {
    if (!is(Mutant::kSendBeforeWait)) lane->world.grid_wait(lane->thread);
    return lane->world.word_of(at, bytes, lane->thread);
  }
  // A load sees what others did since this thread last let them run.
  void before_load() const {
    if (order().published) lane->world.yield(lane->thread, ThreadState::kReady);
  }
  bool load_abort_word() const {
    uint32_t word[1];
    before_load();
    machine().load(order(), lane->world.abort_word(lane->world.rank_of(lane->thread)), 1, true, word);
    return word[0] != 0;
  }

  // Where a record of either kind lies; mutants keep it elsewhere.
  template <class R>
  const R* place_of(const R* at) const {
    if (is(Mutant::kOneRecordForAll)) return at - lane->thread.channel;
    const bool other_handle = is(Mutant::kTwoHandles) && lane->world.call_of(lane->thread) % 2 == 1;
    const bool other_protocol = is(Mutant::kSharedScratch) && lane->launch.row->scratch == ScratchKind::kSentinel;
    if (!other_handle && !other_protocol) return at;
    return reinterpret_cast<const R*>(lane->world.spare_record(lane->thread));
  }

  template <class Unit>
  void store_pieces(uint32_t word, Unit value, Store kind) const {
    const int n = lane->world.program().grain / 4;
    for (int i = 0; i < Unit::kWords; i += n) machine().store(order(), word + i, n, value.words + i, kind);
  }
  template <class Unit>
  Unit load_pieces(uint32_t word, bool strong) const {
    const int n = lane->world.program().grain / 4;
    Unit value;
    for (int i = 0; i < Unit::kWords; i += n) machine().load(order(), word + i, n, strong, value.words + i);
    return value;
  }

  void read_element(const char* at, uint32_t bytes, char* out) const {
    const uint32_t word = lane->world.word_of(at, bytes, lane->thread);
    if (lane->world.is_raw(word)) {
      std::memcpy(out, lane->world.raw(word) + (reinterpret_cast<uintptr_t>(at) & 3), bytes);
      return;
    }
    uint32_t words[2];
    before_load();
    machine().load(order(), word, static_cast<int>(bytes / 4), false, words);
    std::memcpy(out, words, bytes);
  }
  void write_element(char* at, uint32_t bytes, const char* in) const {
    const uint32_t word = enter(at, bytes);
    if (lane->world.is_raw(word)) {
      std::memcpy(lane->world.raw(word) + (reinterpret_cast<uintptr_t>(at) & 3), in, bytes);
      return;
    }
    uint32_t words[2];
    std::memcpy(words, in, bytes);
    machine().store(order(), word, static_cast<int>(bytes / 4), words, Store::kPlain);
  }
};

using SimMemoryAhead = SimMemoryOf<1, false>;
using SimMemoryStreaming = SimMemoryOf<1, true>;
using SimMemorySwapping = SimMemoryOf<1, true, true>;

}  // namespace llcoll::sim
