// All-to-all: part p of this rank's input goes to rank p, part p of its output comes from rank p.
#pragma once

#include "llcoll/exchange.h"

namespace llcoll {
inline namespace LLC_ISA {

// In place where both have the same parts: the member that read a unit of part p is the one that overwrites it, but
// with several epochs ahead only what was sent before.
template <template <class> class ProtocolOf, class Type, class Memory, class Group>
LLC_FN void all_to_all(Memory& mem, const Group& group, const Scratch& scratch, const Parts& input, const Parts& output,
                       const Cut& cut) {
  using Protocol = ProtocolOf<Memory>;
  using Unit = typename Protocol::Unit;
  const int num_ranks = scratch.shape.num_ranks;
  const int rank = scratch.rank;
  run_exchange<Protocol, Type>(
      mem, group, scratch, cut, push_regions(1, num_ranks) * cut.stride,
      [&](uint32_t c, const auto& stage) {
        send_parts<Protocol>(mem, group, stage, input, cut, c);
        stage.flush(0);
      },
      [&](uint32_t c, const auto& stage) {
        copy_own<Unit>(mem, group, input, rank, output, rank, cut, c);
        return stage.ready(0) && receive_parts<false, Protocol>(mem, group, stage, output, cut, c);
      },
      [&] { poison_parts<Unit>(mem, group, output, num_ranks, cut); });
}

}  // namespace LLC_ISA
}  // namespace llcoll
