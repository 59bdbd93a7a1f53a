// Reduce-scatter: rank p gets the reduction of all ranks' part p. A reduce is one whose parts are all empty but the
// root's. The result of an element does not depend on who owns it: summed in rank order, rounded once.
#pragma once

#include "llcoll/exchange.h"
#include "llcoll/gather.h"
#include "llcoll/rows.h"

namespace llcoll {
inline namespace LLC_ISA {

// `output` has one part, this rank's own; it may lie at its place in `input`. `ranks` 0: taken from the scratch.
template <template <class> class ProtocolOf, class Type, int ranks, class Op, class Memory, class Group>
LLC_FN void reduce_scatter(Memory& mem, const Group& group, const Scratch& scratch, const Parts& input,
                           const Parts& output, const Cut& cut, Op op) {
  using Protocol = ProtocolOf<Memory>;
  using Unit = typename Protocol::Unit;
  const int num_ranks = ranks == 0 ? scratch.shape.num_ranks : ranks;
  const int rank = scratch.rank;
  // A rank that owns nothing gets nothing: its slots stay empty.
  const uint32_t extent = input.bytes_of(rank) == 0 ? 0 : push_regions(1, num_ranks) * cut.stride;
  run_exchange<Protocol, Type>(
      mem, group, scratch, cut, extent,
      [&](uint32_t c, const auto& stage) {
        send_parts<Protocol>(mem, group, stage, input, cut, c);
        stage.flush(0);
      },
      [&](uint32_t c, const auto& stage) {
        if (!stage.ready(0)) return false;
        const Span span = input.span<Unit>(rank, group.channel, c, cut.chunk);
        if constexpr (kByRows<Protocol, Memory>) {
          const Message own = make_message(input.start_of(rank), output.data, input.bytes_of(rank),
                                           static_cast<int>(input.element_bytes), Unit::kBytes, true, true);
          reduce_rows<Type, ranks, Unit>(
              mem, own, span.begin, span.count, rank, num_ranks, op,
              [&](int source) { return stage.slot(source, pull_region(rank), 0); }, [](uint32_t, const Unit&) {});
          return true;
        }
        bool arrived = true;
        group.each(span.count, [&](uint32_t i) {
          const Unit own = input.read<Unit>(mem, rank, span.begin + i);
          Unit sum{};
          if (arrived) arrived = receive_reduce<Type, ranks>(mem, stage, 0, i, own, op, false, sum);
          if (arrived) output.write(mem, 0, span.begin + i, sum);
        });
        return arrived;
      },
      [&] { poison_parts<Unit>(mem, group, output, 1, cut); });
}

}  // namespace LLC_ISA
}  // namespace llcoll
