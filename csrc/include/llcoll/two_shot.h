// Two-shot all-reduce: reduce-scatter (rank p reduces part p), then all-gather, both in one epoch by one protocol.
#pragma once

#include "llcoll/one_shot.h"

namespace llcoll {
inline namespace LLC_ISA {

template <template <class> class ProtocolOf, class Type, int ranks, class Op, class Memory, class Group, class Input>
LLC_FN void two_shot(Memory& mem, const Group& group, const Scratch& scratch, const Input& message, const Plan& plan,
                     Op op) {
  using Protocol = ProtocolOf<Memory>;
  using Unit = typename Protocol::Unit;
  const int num_ranks = ranks == 0 ? scratch.shape.num_ranks : ranks;
  const int rank = scratch.rank;
  const uint32_t num_regions = Protocol::kPush ? push_regions(2, num_ranks) : pull_regions(2, num_ranks);
  constexpr bool kKeep = Group::kOnce && ranks != 0;
  Unit kept[kKeep ? ranks : 1]{};  // what this member sends, and its own; read once
  auto read = [&](int part, uint32_t i) { return message.template read<Unit>(mem, part * plan.part + i); };
  run_epochs<Protocol, Type>(
      mem, group, scratch, plan, num_regions,
      [&](uint32_t begin, uint32_t count) {
        if constexpr (kKeep) {
          group.each(count, [&](uint32_t i) {
            LLC_UNROLL
            for (int p = 0; p < ranks; ++p) kept[p] = read(p, begin + i);
          });
        }
      },
      [&](const auto& stage, uint32_t begin, uint32_t count) {
        if constexpr (kByRows<Protocol, Memory>) {
          for (int peer = 0; peer < num_ranks; ++peer) {
            if (peer == rank) continue;
            stage_row(mem, message, peer * plan.part + begin, count, stage.slot(rank, pull_region(peer), 0));
          }
          return stage.flush(0);
        }
        group.each(count, [&](uint32_t i) {
          LLC_UNROLL
          for (int peer = 0; peer < num_ranks; ++peer) {
            if (peer == rank) continue;
            if constexpr (kKeep) {
              stage.send(0, peer, i, kept[peer]);
            } else {
              stage.send(0, peer, i, read(peer, begin + i));
            }
          }
        });
        stage.flush(0);
      },
      [&](const auto& stage, uint32_t begin, uint32_t count, bool) {
        bool arrived = stage.ready(0);
        if (!arrived) return false;
        if constexpr (kByRows<Protocol, Memory>) {
          const uint32_t shared_region = pull_region_for_all(1, num_ranks);
          Unit* result = stage.slot(rank, shared_region, 0);
          reduce_rows<Type, ranks, Unit>(
              mem, message, rank * plan.part + begin, count, rank, num_ranks, op,
              [&](int source) { return stage.slot(source, pull_region(rank), 0); },
              [&](uint32_t i, const Unit& sum) { mem.put(result + i, sum); });
          stage.flush(1);
          if (!stage.ready(1)) return false;
          for (int source = 0; source < num_ranks; ++source) {
            if (source == rank) continue;
            gather_row(mem, message, source * plan.part + begin, count, stage.slot(source, shared_region, 0));
          }
          return true;
        }
        group.each(count, [&](uint32_t i) {
          const uint32_t at = rank * plan.part + begin + i;
          Unit own{};
          if constexpr (kKeep) {
            LLC_UNROLL  // rank is not known at compile time, and an indexed array would live in memory
                for (int p = 0; p < ranks; ++p) own = p == rank ? kept[p] : own;
          } else {
            own = read(rank, begin + i);
          }
          Unit sum{};
          if (arrived) arrived = receive_reduce<Type, ranks>(mem, stage, 0, i, own, op, false, sum);
          if (!arrived) return;
          stage.bcast(1, i, sum, num_ranks);
          message.write(mem, at, sum);
        });
        // A pull protocol has a barrier in flush and ready; a member of a push protocol that failed must not leave the
        // others waiting for results it never sent, so nobody is asked here: they fail by their own limit.
        if (!Protocol::kPush && group.any(!arrived)) return false;
        stage.flush(1);
        if (arrived) arrived = stage.ready(1);
        group.each(count, [&](uint32_t i) {
          for (int source = 0; source < num_ranks; ++source) {
            if (source == rank || !arrived) continue;
            Unit w{};
            arrived = wait_until(
                mem, stage.epoch, [&] { return stage.try_recv_shared(1, source, i, w); }, [&] { return source; });
            if (arrived) message.write(mem, source * plan.part + begin + i, w);
          }
        });
        return arrived;
      },
      [&](uint32_t begin, uint32_t count) {
        for (uint32_t i = group.rank; i < count; i += group.size) {
          for (int p = 0; p < num_ranks; ++p) message.write(mem, p * plan.part + begin + i, poison<Type, Unit>());
        }
      });
}

}  // namespace LLC_ISA
}  // namespace llcoll
