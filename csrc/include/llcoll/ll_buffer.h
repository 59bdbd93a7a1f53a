// LLBuffer: low-latency messages between ranks, for kernels of your own. docs/ll_buffer.md teaches it.
//
// One object per thread; the members of a group (a CTA, a warp, one CPU thread) share one block of the buffer. Rules:
//   1. What one rank sends to slot s of a peer in an epoch, the peer receives from slot s with the same T, once.
//   2. Every epoch ends with advance_epoch() of all members, the last one of a kernel too.
//   3. In each epoch every rank receives from each peer that it will send to (round_robin >= 2). Where that is not so
//      (a ring), barrier() stands between a part's use and its next.
//   4. A sentinel slot that was received is reset before its part's turn comes again: reset = true, or reset_range().
//   5. failed() ends the work: nothing is sent or awaited any more, recv() returns NaN (0 for integers).
#pragma once

#include <utility>

#include "llcoll/ll_slot.h"
#include "llcoll/wait.h"

namespace llcoll {
inline namespace LLC_ISA {

inline constexpr int kUnknownSource = -1;

template <LlMode mode, class Memory, class Group, bool multicast = false>
class LLBuffer {
 public:
  static constexpr LlMode kMode = mode;

  // Loads this block's record: behind the previous kernel on the same buffer.
  LLC_FN LLBuffer(const Memory& mem, const Group& group, const SymmetricBuffer& buffer)
      : mem_(mem),
        group_(group),
        buffer_(buffer),
        own_record_(reinterpret_cast<BufferRecord*>(buffer.memory[buffer.rank] + buffer.shape.records_offset()) +
                    group.channel),
        record_(mem.load_record(own_record_)),
        epoch_(record_.epoch + 1),
        flag_(flag_of_epoch<mode>(epoch_)),
        base_(buffer.shape.slots_offset(record_.part, group.channel)),
        failed_(record_.failed != 0 || mem.aborted(mem.load_abort())) {}

  LLC_FN int rank() const { return buffer_.rank; }
  LLC_FN int num_ranks() const { return buffer_.shape.num_ranks; }
  LLC_FN const Group& group() const { return group_; }
  LLC_FN uint64_t epoch() const { return epoch_; }  // from 1
  LLC_FN bool failed() const { return failed_; }    // this member's view until advance_epoch()
  // Slots of T in this block's part.
  template <class T>
  LLC_FN uint32_t capacity() const {
    return buffer_.shape.bytes_per_block / Slot<T>::kBytes;
  }

  // Stores `data` to slot `slot` of `peer`. relaxed.sys, pairs with the poll of recv(); orders nothing else.
  template <class T>
  LLC_FN void send(int peer, uint32_t slot, const T& data) {
    if (!failed_) {
      Slot<T>::template store<false>(mem_, buffer_.memory[peer] + offset_of<T>(slot), Slot<T>::encode(data), flag_);
    }
  }

  // send() to every rank, this one included, so that a reduction finds all inputs in slots. `unroll` peers at once.
  template <int unroll = 8, class T>
  LLC_FN void bcast(uint32_t slot, const T& data) {
    if (failed_) return;
    const auto words = Slot<T>::encode(data);
    const uint64_t offset = offset_of<T>(slot);
    if constexpr (multicast) {
      Slot<T>::template store<true>(mem_, buffer_.multicast + offset, words, flag_);
    } else {
      for (int first = 0; first < num_ranks(); first += unroll) {
        LLC_UNROLL
        for (int k = 0; k < unroll; ++k) {
          if (first + k >= num_ranks()) break;
          Slot<T>::template store<false>(mem_, buffer_.memory[first + k] + offset, words, flag_);
        }
      }
    }
  }

  // Waits for the slot. With `reset_after`, the slot is empty again; peers see that by advance_epoch() or the end of
  // the kernel, not when recv() returns. `source` names whom a failed wait reports.
  template <class T, bool reset_after = false>
  LLC_FN T recv(uint32_t slot, int source = kUnknownSource) {
    T data[1];
    recv_unrolled<1, 1, T, reset_after>(slot, 1, 0, data, source);
    return data[0];
  }

  // Slots slot, slot + stride, ...: [0, min_count) always, [min_count, max_count) below `count`, all polled together,
  // so that their latencies overlap. Slot k is reported as of rank first_source + k.
  template <int min_count, int max_count, class T, bool reset_after = false>
  LLC_FN void recv_unrolled(uint32_t slot, int count, uint32_t stride, T (&data)[max_count],
                            int first_source = kUnknownSource) {
    static_assert(0 <= min_count && min_count <= max_count && max_count > 0);
    typename Slot<T>::Words words[max_count];
    const char* first = buffer_.memory[rank()] + offset_of<T>(slot);
    auto is_here = [&](int k) {
      return !(k < min_count || k < count) ||
             Slot<T>::try_load(mem_, first + uint64_t{stride} * k * Slot<T>::kBytes, flag_, words[k]);
    };
    if (!failed_) {
      failed_ = !wait_until(
          mem_, epoch_,
          [&] {
            bool all = true;
            LLC_UNROLL
            for (int k = 0; k < max_count; ++k) all &= is_here(k);
            return all;
          },
          [&] {
            for (int k = 0; k < max_count && first_source >= 0; ++k) {
              if (!is_here(k)) return first_source + k;
            }
            return rank();
          });
    }
    LLC_UNROLL
    for (int k = 0; k < max_count; ++k) {
      if (!(k < min_count || k < count)) continue;
      data[k] = failed_ ? Slot<T>::poisoned() : Slot<T>::decode(words[k]);
      if (reset_after && !failed_) reset<T>(slot + k * stride);
    }
  }

  // reduce(... reduce(to_acc(slot 0), to_acc(slot 1)) ...) in this order, whatever order they arrive in: the same bits
  // on every rank. `unroll` slots are polled together; count >= 1.
  template <int unroll, class T, bool reset_after = false, class ToAcc, class Reduce>
  LLC_FN auto recv_reduce(uint32_t slot, int count, uint32_t stride, ToAcc&& to_acc, Reduce&& reduce,
                          int first_source = kUnknownSource) -> decltype(to_acc(std::declval<T>())) {
    decltype(to_acc(std::declval<T>())) acc{};
    for (int first = 0; first < count; first += unroll) {
      T data[unroll];
      recv_unrolled<1, unroll, T, reset_after>(slot + first * stride, count - first, stride, data,
                                               first_source < 0 ? first_source : first_source + first);
      LLC_UNROLL
      for (int k = 0; k < unroll; ++k) {
        if (first + k < count) acc = first + k == 0 ? to_acc(data[k]) : reduce(acc, to_acc(data[k]));
      }
    }
    return acc;
  }

  // Empties a slot of this rank, in the part of this epoch or of an earlier one: nobody may be sending there.
  // Visible to peers as after recv(). kLl needs no reset; who resets there orders it by barrier() or the kernel's end.
  template <class T>
  LLC_FN void reset(uint32_t slot, uint32_t epochs_ago = 0) {
    Slot<T>::clear(mem_, buffer_.memory[rank()] + offset_of<T>(slot, epochs_ago));
  }
  // The slots [first, first + count), split over the members. With three parts, epochs_ago = 1 keeps clears off the
  // critical path; with two they would meet the peers' next messages.
  template <class T>
  LLC_FN void reset_range(uint32_t first, uint32_t count, uint32_t epochs_ago = 0) {
    for (uint32_t i = group_.rank; i < count; i += group_.size) reset<T>(first + i, epochs_ago);
  }

  // Ends the epoch, for all members. The barrier holds idle members too: without it the next sends could come from one
  // that is not ordered behind the reads. `last`: nothing follows in this kernel, whose end then orders the resets.
  LLC_FN void advance_epoch(bool last = false) {
    // Resets and reads before the next sends, on both sides of the barrier: the fence before it acquires what this
    // member polled (another may write next), the one behind it releases what others cleared (this one sends).
    if (kClears && !last) mem_.fence();
    failed_ = group_.any(failed_);
    if constexpr (mode == LlMode::kLlNarrow) scrub();
    if (kClears && !last) mem_.fence();
    epoch_ += 1;
    record_.epoch += 1;
    if (buffer_.shape.round_robin != 0) {
      record_.part = static_cast<uint16_t>(record_.part + 1u == buffer_.shape.round_robin ? 0 : record_.part + 1);
    }
    base_ = buffer_.shape.slots_offset(record_.part, group_.channel);
    flag_ = flag_of_epoch<mode>(epoch_);
    save();
  }

  // Between all ranks' members of this block: what any of them did before, each of them sees behind it.
  LLC_FN void barrier() {
    record_.barriers += 1;
    group_.sync();
    for (uint32_t peer = group_.rank; peer < uint32_t(num_ranks()) && !failed_; peer += group_.size) {
      // Release: behind the group's barrier, so it covers every member's stores.
      mem_.fence();
      mem_.store_packet(barrier_word(int(peer), rank()), Packet{0, record_.barriers});
    }
    for (uint32_t peer = group_.rank; peer < uint32_t(num_ranks()) && !failed_; peer += group_.size) {
      // >=: a peer may be one barrier ahead.
      const Packet* word = barrier_word(rank(), int(peer));
      failed_ = !wait_until(
          mem_, epoch_,
          [&] { return static_cast<int32_t>(uint32_t(mem_.load_packet(word).flag) - record_.barriers) >= 0; },
          [&] { return static_cast<int>(peer); });
    }
    mem_.fence();  // acquire; the barrier hands it to the other members
    failed_ = group_.any(failed_);
    save();
  }

 private:
  template <class T>
  using Slot = LlSlot<mode, T>;
  static constexpr bool kClears = mode != LlMode::kLl;

  template <class T>
  LLC_FN uint64_t offset_of(uint32_t slot, uint32_t epochs_ago = 0) const {
    uint64_t base = base_;
    if (epochs_ago != 0) {
      const uint32_t parts = buffer_.shape.num_parts();
      base = buffer_.shape.slots_offset((record_.part + parts - epochs_ago % parts) % parts, group_.channel);
    }
    return base + uint64_t{slot} * Slot<T>::kBytes;
  }

  // A 4-byte flag comes again after 2^32 - 1 epochs, so a slot that nobody used for so long would hand out old data:
  // each epoch empties one slot of the part that just ended. All members have received there (the barrier before), and
  // peers send there again only after this rank's next messages, which the barrier and the fence put behind it.
  LLC_FN void scrub() {
    if (buffer_.shape.round_robin < 2) return;
    using Packet = LlSlot<mode, uint32_t>;
    const uint32_t num_slots = buffer_.shape.bytes_per_block / Packet::kBytes;
    const uint32_t turn = static_cast<uint32_t>(epoch_) / buffer_.shape.round_robin;
    if (group_.rank == 0) {
      Packet::clear(mem_, buffer_.memory[rank()] + base_ + uint64_t{turn % num_slots} * Packet::kBytes);
    }
    group_.sync();
  }

  LLC_FN Packet* barrier_word(int at_rank, int source) const {
    return reinterpret_cast<Packet*>(buffer_.memory[at_rank] + buffer_.shape.barrier_offset(group_.channel, source));
  }
  // Behind a group barrier that came after every member's constructor.
  LLC_FN void save() {
    record_.failed |= static_cast<uint16_t>(failed_);
    if (group_.rank == 0) mem_.store_record(own_record_, record_);
  }

  Memory mem_;
  Group group_;
  const SymmetricBuffer& buffer_;
  BufferRecord* own_record_;
  BufferRecord record_;
  uint64_t epoch_;
  LlFlag flag_;
  uint64_t base_;
  bool failed_;
};

}  // namespace LLC_ISA
}  // namespace llcoll
