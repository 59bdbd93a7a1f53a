// What the collectives of one exchange share: the epochs of a launch, sending parts, receiving parts.
#pragma once

#include "llcoll/channel.h"
#include "llcoll/hello.h"
#include "llcoll/parts.h"

namespace llcoll {
inline namespace LLC_ISA {

// send(c, stage) and receive(c, stage) for each epoch c of one launch; receive comes `Protocol::kAhead` epochs later.
// It returns false once a peer did not come: nothing is sent or awaited after that, and poison() fills the output.
// `extent`: slots of this rank that its peers fill in an epoch.
//
// The flag protocol's ready words reach every peer in every epoch, data or not: it needs hellos only where ranks do not
// know how many epochs the others need, and then stays 0 ahead (else a ready word could be two epochs ahead, and its
// `more` lost).
template <class Protocol, class Type, class Memory, class Group, class Send, class Receive, class Poison>
LLC_FN void run_exchange(Memory& mem, const Group& group, const Scratch& scratch, const Cut& cut, uint32_t extent,
                         Send&& send, Receive&& receive, Poison&& poison) {
  using Stage = typename Protocol::template Stage<Type, Group>;
  Channel<Protocol, Memory, Group> channel(mem, group, scratch);
  const auto abort_word = mem.load_abort();
  channel.await_last_launch(mem, group);
  bool failed = channel.failed();
  const bool hello = cut.hello && (Protocol::kPush || cut.open_ended);
  const uint32_t ahead = cut.open_ended ? 0u : uint32_t{Protocol::kAhead};
  const uint64_t epoch0 = channel.epoch() + 1;
  uint32_t num_epochs = cut.num_chunks;
  uint32_t sent = 0;
  uint32_t receive_buffer = channel.buffer();
  auto stage_of = [&](uint32_t c, uint32_t buffer) {
    return Stage{mem, group, scratch, epoch0 + c, scratch.shape.slot_offset(buffer, group.channel), cut.stride};
  };
  for (uint32_t c = 0; c < num_epochs && !failed; ++c) {
    for (; sent < num_epochs && sent <= c + ahead; ++sent) {
      channel.advance();
      if (hello) Hello<Memory, Group>{mem, group, scratch, epoch0 + sent}.send(sent + 1 < cut.num_chunks);
      send(sent, stage_of(sent, channel.buffer()));
    }
    const uint32_t previous_buffer = receive_buffer;
    receive_buffer = channel.next(receive_buffer);
    const Stage stage = stage_of(c, receive_buffer);
    failed = mem.aborted(abort_word) || !receive(c, stage);
    bool more = c + 1 < cut.num_chunks;
    if (hello && !failed) failed = !Hello<Memory, Group>{mem, group, scratch, stage.epoch}.await(more);
    if (cut.open_ended) {
      more = group.any(more);
      num_epochs = more ? c + 2 : c + 1;
    }
    const bool last = c + 1 == num_epochs;
    if (last) group.trigger();
    stage.retire(channel.extent(), previous_buffer);
    channel.set_extent(extent);
    // Ends the epoch for idle members too: without it the next sends could come from a member that is not ordered
    // behind the reads. With clears there is a fence on both sides of the barrier: the one before it acquires what this
    // member polled (another may write next), the one after it releases what others cleared (this one sends).
    if (Protocol::kNeedsFence && !last) mem.fence();
    failed = group.any(failed);
    if (Protocol::kNeedsFence && !last) mem.fence();
  }
  if (failed) poison();
  channel.close(mem, group, failed);
}

// Every member's i is sent to, or awaited from, a batch of peers at once, so that their latencies overlap.
template <class Memory>
inline constexpr int kPeerBatch = Memory::kPeerBatch;

// One thread alone that stages or copies whole rows: a unit's bookkeeping would cost as much as its memory accesses.
template <class Memory>
inline constexpr bool kCopiesRows = requires(const Memory& mem, char* to) {
  mem.copy_row(to, to, uint64_t{});
};

// Sends each peer its part of `input`. Ranks start with different peers, so that no one is everybody's first.
template <class Protocol, class Memory, class Group, class Stage>
LLC_FN void send_parts(const Memory& mem, const Group& group, const Stage& stage, const Parts& input, const Cut& cut,
                       uint32_t c) {
  using Unit = typename Protocol::Unit;
  constexpr int kBatch = kPeerBatch<Memory>;
  const int num_ranks = stage.scratch.shape.num_ranks;
  const int rank = stage.scratch.rank;
  if constexpr (!Protocol::kPush && kCopiesRows<Memory>) {
    for (int peer = 0; peer < num_ranks; ++peer) {
      const Span span = input.span<Unit>(peer, group.channel, c, cut.chunk);
      if (peer == rank || span.count == 0) continue;
      mem.put_row(stage.slot(rank, pull_region(peer), 0), input.at<Unit>(peer, span), input.bytes_in<Unit>(peer, span));
    }
    return;
  }
  for (int first = 1; first < num_ranks; first += kBatch) {
    int peers[kBatch];
    Span spans[kBatch];
    uint32_t longest = 0;
    LLC_UNROLL
    for (int k = 0; k < kBatch; ++k) {
      const int at = rank + first + k;
      peers[k] = at < num_ranks ? at : at - num_ranks;
      spans[k] = {0, 0};
      if (first + k < num_ranks) spans[k] = input.span<Unit>(peers[k], group.channel, c, cut.chunk);
      longest = spans[k].count > longest ? spans[k].count : longest;
    }
    group.each(longest, [&](uint32_t i) {
      Unit units[kBatch];
      LLC_UNROLL
      for (int k = 0; k < kBatch; ++k) {
        if (kBatch == 1 || i < spans[k].count) units[k] = input.read<Unit>(mem, peers[k], spans[k].begin + i);
      }
      LLC_UNROLL
      for (int k = 0; k < kBatch; ++k) {
        if (kBatch == 1 || i < spans[k].count) stage.send(0, peers[k], i, units[k]);
      }
    });
  }
}

// Receives every peer's part into `output`. False: one did not come.
template <bool kShared, class Protocol, class Memory, class Group, class Stage>
LLC_FN bool receive_parts(const Memory& mem, const Group& group, const Stage& stage, const Parts& output,
                          const Cut& cut, uint32_t c) {
  using Unit = typename Protocol::Unit;
  constexpr int kBatch = kPeerBatch<Memory>;
  const int num_ranks = stage.scratch.shape.num_ranks;
  const int rank = stage.scratch.rank;
  if constexpr (!Protocol::kPush && kCopiesRows<Memory>) {
    const uint32_t region = kShared ? pull_region_for_all(0, num_ranks) : pull_region(rank);
    for (int source = 0; source < num_ranks; ++source) {
      const Span span = output.span<Unit>(source, group.channel, c, cut.chunk);
      if (source == rank || span.count == 0) continue;
      mem.copy_row(output.at<Unit>(source, span), stage.slot(source, region, 0), output.bytes_in<Unit>(source, span));
    }
    return true;
  }
  bool arrived = true;
  for (int first = 1; first < num_ranks; first += kBatch) {
    int sources[kBatch];
    Span spans[kBatch];
    uint32_t longest = 0;
    LLC_UNROLL
    for (int k = 0; k < kBatch; ++k) {
      const int at = rank - first - k;  // the one that sends to this rank as its (first + k)th
      sources[k] = at < 0 ? at + num_ranks : at;
      spans[k] = {0, 0};
      if (first + k < num_ranks) spans[k] = output.span<Unit>(sources[k], group.channel, c, cut.chunk);
      longest = spans[k].count > longest ? spans[k].count : longest;
    }
    group.each(longest, [&](uint32_t i) {
      if (!arrived) return;
      Unit units[kBatch];
      const auto attempt = [&](int k) {
        if (kBatch > 1 && i >= spans[k].count) return true;
        return kShared ? stage.try_recv_shared(0, sources[k], i, units[k]) : stage.try_recv(0, sources[k], i, units[k]);
      };
      arrived = wait_until(
          mem, stage.epoch,
          [&] {
            bool all = true;
            LLC_UNROLL
            for (int k = 0; k < kBatch; ++k) all &= attempt(k);
            return all;
          },
          [&] {
            for (int k = 0; k < kBatch; ++k) {
              if (!attempt(k)) return sources[k];
            }
            return rank;
          });
      if (!arrived) return;
      LLC_UNROLL
      for (int k = 0; k < kBatch; ++k) {
        if (kBatch == 1 || i < spans[k].count) output.write(mem, sources[k], spans[k].begin + i, units[k]);
      }
    });
  }
  return arrived;
}

// This rank's own part, from its input to its output; nothing where they are the same place.
template <class Unit, class Memory, class Group>
LLC_FN void copy_own(const Memory& mem, const Group& group, const Parts& input, int input_part, const Parts& output,
                     int rank, const Cut& cut, uint32_t c) {
  if (input.start_of(input_part) == output.start_of(rank)) return;
  const Span span = output.span<Unit>(rank, group.channel, c, cut.chunk);
  if constexpr (kCopiesRows<Memory>) {
    if (span.count == 0) return;
    mem.copy_row(output.at<Unit>(rank, span), input.at<Unit>(input_part, span), output.bytes_in<Unit>(rank, span));
    return;
  }
  group.each(span.count, [&](uint32_t i) {
    output.write(mem, rank, span.begin + i, input.read<Unit>(mem, input_part, span.begin + i));
  });
}

// What a failed call leaves: this channel's units of `num_parts` parts.
template <class Unit, class Memory, class Group>
LLC_FN void poison_parts(const Memory& mem, const Group& group, const Parts& output, int num_parts, const Cut& cut) {
  Unit unit;
  for (int w = 0; w < Unit::kWords; ++w) unit.words[w] = static_cast<uint32_t>(cut.poison >> (32 * (w & 1)));
  for (int p = 0; p < num_parts; ++p) {
    const Span all = output.span<Unit>(p, group.channel, 0, output.per_channel[p]);
    for (uint32_t i = group.rank; i < all.count; i += group.size) output.write(mem, p, all.begin + i, unit);
  }
}

}  // namespace LLC_ISA
}  // namespace llcoll
