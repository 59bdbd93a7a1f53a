// Receiving one unit from every rank and reducing in rank order.
#pragma once

#include "llcoll/reduce.h"
#include "llcoll/wait.h"

namespace llcoll {
inline namespace LLC_ISA {

// Polls a batch of sources together, so that their latencies overlap, and sums in rank order whatever order they
// arrive in. `num_batch` at compile time; sources [first, last) with last - first <= num_batch.
template <bool kShared, int num_batch, class Stage, class Memory, class Unit>
LLC_FN bool receive_batch(const Memory& mem, const Stage& stage, int phase, int first, int last, uint32_t i,
                          Unit (&units)[num_batch]) {
  const int rank = stage.scratch.rank;
  uint32_t missing = 0;  // bit k: source first + k had not arrived at the last look
  return wait_until(
      mem, stage.epoch,
      [&] {
        missing = 0;
        LLC_UNROLL
        for (int k = 0; k < num_batch; ++k) {
          const int source = first + k;
          if (source >= last || source == rank) continue;
          const bool arrived =
              kShared ? stage.try_recv_shared(phase, source, i, units[k]) : stage.try_recv(phase, source, i, units[k]);
          missing |= uint32_t{!arrived} << k;
        }
        return missing == 0;
      },
      [&] {
        int k = 0;
        while (!(missing >> k & 1)) ++k;
        return first + k;
      });
}

// ranks = 0: known at run time, in batches of 4 (one loop over all would serialise the round trips; one array of all
// would spill).
template <class Type, int ranks, class Op, class Stage, class Memory, class Unit>
LLC_FN bool receive_reduce(const Memory& mem, const Stage& stage, int phase, uint32_t i, Unit own, Op op,
                           bool shared_region, Unit& result) {
  constexpr int kBatch = ranks == 0 ? 4 : ranks;
  const int num_ranks = ranks == 0 ? stage.scratch.shape.num_ranks : ranks;
  const int rank = stage.scratch.rank;
  Accumulator<Type, Op, Unit> sum(op);
  for (int first = 0; first < num_ranks; first += kBatch) {
    Unit units[kBatch];
    const int last = ranks != 0 || first + kBatch > num_ranks ? num_ranks : first + kBatch;
    const bool arrived = shared_region ? receive_batch<true>(mem, stage, phase, first, last, i, units)
                                       : receive_batch<false>(mem, stage, phase, first, last, i, units);
    if (!arrived) return false;
    LLC_UNROLL
    for (int k = 0; k < kBatch; ++k) {
      if (first + k >= last) break;
      const Unit unit = first + k == rank ? own : units[k];
      if (first + k == 0) {
        sum.first(unit);
      } else {
        sum.next(unit);
      }
    }
  }
  result = sum.result(num_ranks);
  return true;
}

}  // namespace LLC_ISA
}  // namespace llcoll
