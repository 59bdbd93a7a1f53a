// All-gather: every rank gets every rank's part. A broadcast is one whose parts are all empty but the root's.
#pragma once

#include "llcoll/exchange.h"

namespace llcoll {
inline namespace LLC_ISA {

// `input` has one part, this rank's own; it may lie at its place in `output`.
template <template <class> class ProtocolOf, class Type, class Memory, class Group>
LLC_FN void all_gather(Memory& mem, const Group& group, const Scratch& scratch, const Parts& input, const Parts& output,
                       const Cut& cut) {
  using Protocol = ProtocolOf<Memory>;
  using Unit = typename Protocol::Unit;
  const int num_ranks = scratch.shape.num_ranks;
  const int rank = scratch.rank;
  run_exchange<Protocol, Type>(
      mem, group, scratch, cut, push_regions(1, num_ranks) * cut.stride,
      [&](uint32_t c, const auto& stage) {
        const Span span = output.span<Unit>(rank, group.channel, c, cut.chunk);
        if constexpr (!Protocol::kPush && kCopiesRows<Memory>) {
          if (span.count != 0 && num_ranks > 1) {
            mem.put_row(stage.slot(rank, pull_region_for_all(0, num_ranks), 0), input.at<Unit>(0, span),
                        input.bytes_in<Unit>(0, span));
          }
          return stage.flush(0);
        }
        group.each(span.count,
                   [&](uint32_t i) { stage.bcast(0, i, input.read<Unit>(mem, 0, span.begin + i), num_ranks); });
        stage.flush(0);
      },
      [&](uint32_t c, const auto& stage) {
        copy_own<Unit>(mem, group, input, 0, output, rank, cut, c);
        return stage.ready(0) && receive_parts<true, Protocol>(mem, group, stage, output, cut, c);
      },
      [&] { poison_parts<Unit>(mem, group, output, num_ranks, cut); });
}

}  // namespace LLC_ISA
}  // namespace llcoll
