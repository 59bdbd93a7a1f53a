// One-shot all-reduce: every rank gets every rank's whole message and reduces it by itself.
#pragma once

#include "llcoll/channel.h"
#include "llcoll/gather.h"
#include "llcoll/message.h"
#include "llcoll/rows.h"

namespace llcoll {
inline namespace LLC_ISA {

// The epochs [0, num_chunks) of one launch: send(c, stage), then receive(c, stage) kAhead epochs later. Ends with the
// record written. receive returns false once a peer did not come: nothing is sent or awaited after that, and `poison()`
// fills the output. `preload(begin, count)` comes ahead of each chunk's send, the first before anything is known of the
// epoch: what it loads travels beside the record. The abort word too is only looked at behind the first sends, which
// harm nobody: they carry this rank's true input into an epoch that no peer will end.
template <class Protocol, class Type, class Memory, class Group, class Preload, class Send, class Receive, class Poison>
LLC_FN void run_epochs(Memory& mem, const Group& group, const Scratch& scratch, const Plan& plan, uint32_t num_regions,
                       Preload&& preload, Send&& send, Receive&& receive, Poison&& poison) {
  using Stage = typename Protocol::template Stage<Type, Group>;
  const uint32_t num_chunks = Group::kOneEpoch ? 1 : plan.num_chunks;
  const uint32_t first = group.channel * plan.per_channel;
  const uint32_t end = first + plan.per_channel < plan.part ? first + plan.per_channel : plan.part;
  auto count_of = [&](uint32_t c) {
    const uint32_t begin = first + c * plan.chunk;
    const uint32_t left = begin >= end ? 0 : end - begin;
    return Group::kOneEpoch || left < plan.chunk ? left : plan.chunk;
  };
  preload(first, count_of(0));
  Channel<Protocol, Memory, Group> channel(mem, group, scratch);
  const auto abort_word = mem.load_abort();
  if (channel.await_last_launch(mem, group)) preload(first, count_of(0));
  bool failed = channel.failed();
  auto stage_of = [&](uint64_t epoch, uint32_t buffer, uint32_t count) {
    return Stage{mem, group, scratch, epoch, scratch.shape.slot_offset(buffer, group.channel), stride_of(count)};
  };
  if constexpr (Protocol::kAhead == 0) {
    for (uint32_t c = 0; c < num_chunks && !failed; ++c) {
      const uint32_t previous_buffer = channel.buffer();
      channel.advance();
      const uint32_t count = count_of(c);
      const Stage stage = stage_of(channel.epoch(), channel.buffer(), count);
      const bool last = c + 1 == num_chunks;
      send(stage, first + c * plan.chunk, count);
      stage.retire(channel.extent(), previous_buffer);
      failed = mem.aborted(abort_word) || !receive(stage, first + c * plan.chunk, count, last);
      // Nothing after this waits for a peer: each peer's channel is running, so that the dependents that start now take
      // nobody's place.
      if (last) group.trigger();
      if constexpr (requires { stage.extent(); }) {
        channel.set_extent(stage.extent());
      } else {
        channel.set_extent(num_regions * stage.stride);
      }
      if (!last) preload(first + (c + 1) * plan.chunk, count_of(c + 1));
      // Ends the epoch for idle members too: without it the next sends could come from a member that is not ordered
      // behind the reads. With clears there is a fence on both sides of the barrier: the one before it acquires what
      // this member polled (another may write next), the one after it releases what others cleared (this one sends).
      if (Protocol::kNeedsFence && !last) mem.fence();
      failed = group.any(failed);
      if (Protocol::kNeedsFence && !last) mem.fence();
    }
  } else {
    const uint64_t epoch0 = channel.epoch() + 1;
    uint32_t buffer = channel.buffer();
    uint32_t recv_buffer = buffer;
    for (uint32_t c = 0; c < num_chunks + Protocol::kAhead && !failed; ++c) {
      if (c < num_chunks) {
        buffer = channel.next(buffer);
        channel.advance();
        send(stage_of(epoch0 + c, buffer, count_of(c)), first + c * plan.chunk, count_of(c));
        if (c + 1 < num_chunks) preload(first + (c + 1) * plan.chunk, count_of(c + 1));
      }
      if (c >= Protocol::kAhead) {
        const uint32_t r = c - Protocol::kAhead;
        if (r >= num_chunks) break;
        recv_buffer = channel.next(recv_buffer);
        failed = mem.aborted(abort_word) || !receive(stage_of(epoch0 + r, recv_buffer, count_of(r)),
                                                     first + r * plan.chunk, count_of(r), r + 1 == num_chunks);
        if (r + 1 == num_chunks) group.trigger();
        failed = group.any(failed);
      }
    }
  }
  if (LLC_UNLIKELY(failed)) poison(first, end > first ? end - first : 0);
  channel.close(mem, group, failed);
}

// `scratch` is the protocol's own. In place is allowed. `ranks` 0: taken from the scratch at run time.
template <template <class> class ProtocolOf, class Type, int ranks, class Op, class Memory, class Group, class Input>
LLC_FN void one_shot(Memory& mem, const Group& group, const Scratch& scratch, const Input& message, const Plan& plan,
                     Op op) {
  using Protocol = ProtocolOf<Memory>;
  using Unit = typename Protocol::Unit;
  const int num_ranks = ranks == 0 ? scratch.shape.num_ranks : ranks;
  const uint32_t num_regions = Protocol::kPush ? push_regions(1, num_ranks) : pull_regions(1, num_ranks);
  [[maybe_unused]] const uint32_t shared_region = pull_region_for_all(0, num_ranks);
  Unit kept{};  // kOnce: what this member sends, read once
  auto read = [&](uint32_t i) { return message.template read<Unit>(mem, i); };
  run_epochs<Protocol, Type>(
      mem, group, scratch, plan, num_regions,
      [&](uint32_t begin, uint32_t count) {
        if constexpr (Group::kOnce) group.each(count, [&](uint32_t i) { kept = read(begin + i); });
      },
      [&](const auto& stage, uint32_t begin, uint32_t count) {
        if constexpr (kByRows<Protocol, Memory>) {
          stage_row(mem, message, begin, count, stage.slot(scratch.rank, shared_region, 0));
          return stage.flush(0);
        }
        group.each(count, [&](uint32_t i) {
          if constexpr (Group::kOnce) {
            stage.bcast(0, i, kept, num_ranks);
          } else {
            stage.bcast(0, i, read(begin + i), num_ranks);
          }
        });
        stage.flush(0);
      },
      [&](const auto& stage, uint32_t begin, uint32_t count, bool) {
        if (!stage.ready(0)) return false;
        if constexpr (kByRows<Protocol, Memory>) {
          reduce_rows<Type, ranks, Unit>(
              mem, message, begin, count, scratch.rank, num_ranks, op,
              [&](int source) { return stage.slot(source, shared_region, 0); }, [](uint32_t, const Unit&) {});
          return true;
        }
        bool arrived = true;
        group.each(count, [&](uint32_t i) {
          const Unit own = Group::kOnce ? kept : read(begin + i);
          Unit sum{};
          if (arrived) arrived = receive_reduce<Type, ranks>(mem, stage, 0, i, own, op, true, sum);
          if (arrived) message.write(mem, begin + i, sum);
        });
        return arrived;
      },
      [&](uint32_t begin, uint32_t count) {
        for (uint32_t i = group.rank; i < count; i += group.size) message.write(mem, begin + i, poison<Type, Unit>());
      });
}

}  // namespace LLC_ISA
}  // namespace llcoll
