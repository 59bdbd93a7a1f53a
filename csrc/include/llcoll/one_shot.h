// One-shot all-reduce: every rank gets every rank's whole message and reduces it by itself.
#pragma once

#include "llcoll/channel.h"
#include "llcoll/gather.h"
#include "llcoll/message.h"
#include "llcoll/rows.h"

namespace llcoll {
inline namespace LLC_ISA {

// The epochs [0, num_chunks) of one launch: send(c, stage), then receive(c, stage) kAhead epochs later. Ends with the
// record written. send and receive return false once a peer did not come: nothing is sent or awaited after that, and
// `poison()` fills the output.
template <class Protocol, class Type, class Memory, class Group, class Send, class Receive, class Poison>
LLC_FN void run_epochs(Memory& mem, const Group& group, const Scratch& scratch, const Plan& plan, uint32_t num_regions,
                       Send&& send, Receive&& receive, Poison&& poison) {
  using Stage = typename Protocol::template Stage<Type, Group>;
  Channel<Protocol, Memory, Group> channel(mem, group, scratch);
  bool failed = channel.failed() || mem.aborted();
  const uint32_t first = group.channel * plan.per_channel;
  const uint32_t end = first + plan.per_channel < plan.part ? first + plan.per_channel : plan.part;
  auto count_of = [&](uint32_t c) {
    const uint32_t begin = first + c * plan.chunk;
    return begin >= end ? 0u : (end - begin < plan.chunk ? end - begin : plan.chunk);
  };
  auto stage_of = [&](uint64_t epoch, uint32_t buffer, uint32_t count) {
    return Stage{mem, group, scratch, epoch, scratch.shape.slot_offset(buffer, group.channel), stride_of(count)};
  };
  if constexpr (Protocol::kAhead == 0) {
    for (uint32_t c = 0; c < plan.num_chunks && !failed; ++c) {
      const uint32_t previous_buffer = channel.buffer();
      channel.advance(Protocol::kBuffers);
      const uint32_t count = count_of(c);
      const Stage stage = stage_of(channel.epoch(), channel.buffer(), count);
      const bool last = c + 1 == plan.num_chunks;
      send(stage, first + c * plan.chunk, count);
      failed = !receive(stage, first + c * plan.chunk, count, last);
      stage.retire(channel.extent(), previous_buffer);
      if constexpr (requires { stage.extent(); }) {
        channel.set_extent(stage.extent());
      } else {
        channel.set_extent(num_regions * stage.stride);
      }
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
    auto next = [](uint32_t b) { return b + 1 == Protocol::kBuffers ? 0 : b + 1; };
    for (uint32_t c = 0; c < plan.num_chunks + Protocol::kAhead && !failed; ++c) {
      if (c < plan.num_chunks) {
        buffer = next(buffer);
        channel.advance(Protocol::kBuffers);
        send(stage_of(epoch0 + c, buffer, count_of(c)), first + c * plan.chunk, count_of(c));
      }
      if (c >= Protocol::kAhead) {
        const uint32_t r = c - Protocol::kAhead;
        if (r >= plan.num_chunks) break;
        recv_buffer = next(recv_buffer);
        failed = !receive(stage_of(epoch0 + r, recv_buffer, count_of(r)), first + r * plan.chunk, count_of(r),
                          r + 1 == plan.num_chunks);
        failed = group.any(failed);
      }
    }
  }
  if (failed) poison(first, end > first ? end - first : 0);
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
  Unit kept{};  // kOnce: what this member sent, read once
  run_epochs<Protocol, Type>(
      mem, group, scratch, plan, num_regions,
      [&](const auto& stage, uint32_t begin, uint32_t count) {
        if constexpr (kByRows<Protocol, Memory>) {
          stage_row(mem, message, begin, count, stage.slot(scratch.rank, shared_region, 0));
          return stage.flush(0);
        }
        group.each(count, [&](uint32_t i) {
          const Unit w = message.template read<Unit>(mem, begin + i);
          if constexpr (Group::kOnce) kept = w;
          stage.bcast(0, i, w, num_ranks);
        });
        stage.flush(0);
      },
      [&](const auto& stage, uint32_t begin, uint32_t count, bool last) {
        if (!stage.ready(0)) return false;
        if constexpr (kByRows<Protocol, Memory>) {
          reduce_rows<Type, ranks, Unit>(
              mem, message, begin, count, scratch.rank, num_ranks, op,
              [&](int source) { return stage.slot(source, shared_region, 0); }, [](uint32_t, const Unit&) {});
          return true;
        }
        bool arrived = true;
        group.each(count, [&](uint32_t i) {
          const Unit own = Group::kOnce ? kept : message.template read<Unit>(mem, begin + i);
          Unit sum{};
          if (arrived) arrived = receive_reduce<Type, ranks>(mem, stage, 0, i, own, op, true, sum);
          if (arrived) message.write(mem, begin + i, sum);
        });
        if (last) group.last_receive();
        return arrived;
      },
      [&](uint32_t begin, uint32_t count) {
        for (uint32_t i = group.rank; i < count; i += group.size) message.write(mem, begin + i, poison<Type, Unit>());
      });
}

}  // namespace LLC_ISA
}  // namespace llcoll
