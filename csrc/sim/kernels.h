// Kernels of the simulator: the shipped algorithms over simulated memory, entered as csrc/cuda/launch.cuh enters them.
#pragma once

#include "llcoll/all_gather.h"
#include "llcoll/all_to_all.h"
#include "llcoll/reduce_scatter.h"
#include "llcoll/two_shot.h"
#include "sim/mutant_protocols.h"
#include "sim/sim_group.h"
#include "sim/sim_memory_wide.h"

namespace llcoll::sim {

// What mutants do before the wait for the launch before.
template <class Protocol, class Memory>
void too_early(const Memory& mem, Lane& lane) {
  using Unit = typename Protocol::Unit;
  World& world = lane.world;
  const Message& message = lane.launch.message;
  if (world.is(Mutant::kOutputBeforeWait) && lane.thread.member == 0) {
    for (uint32_t i = 0; i < message.wide_outputs; ++i) mem.write_early(message.output + i * Unit::kBytes, Unit{});
  }
  if (world.is(Mutant::kEarlyTrigger)) world.trigger(lane.thread);
}

template <template <class> class ProtocolOf, bool two, class Type, int ranks, bool once, class Memory>
void kernel(Lane& lane) {
  World& world = lane.world;
  Memory mem{&lane, 0};
  too_early<ProtocolOf<Memory>>(mem, lane);
  if (!world.is(Mutant::kStateBeforeWait) && !world.is(Mutant::kSendBeforeWait)) world.grid_wait(lane.thread);
  if (world.program().early_trigger) world.trigger(lane.thread);
  const SimCta<once> group(lane);
  const AnyOp op{lane.launch.op};
  if constexpr (two) {
    two_shot<ProtocolOf, Type, ranks>(mem, group, *lane.launch.scratch, lane.launch.message, lane.launch.plan, op);
  } else {
    one_shot<ProtocolOf, Type, ranks>(mem, group, *lane.launch.scratch, lane.launch.message, lane.launch.plan, op);
  }
}

template <template <class> class ProtocolOf, Collective collective, class Type, class Memory>
void exchange_kernel(Lane& lane) {
  Memory mem{&lane, 0};
  lane.world.grid_wait(lane.thread);
  if (lane.world.program().early_trigger) lane.world.trigger(lane.thread);
  const SimCta<false> group(lane);
  const ExchangePlan& plan = lane.launch.exchange;
  if constexpr (collective == Collective::kAllGather) {
    all_gather<ProtocolOf, Type>(mem, group, *lane.launch.scratch, plan.input, plan.output, plan.cut);
  } else if constexpr (collective == Collective::kAllToAll) {
    all_to_all<ProtocolOf, Type>(mem, group, *lane.launch.scratch, plan.input, plan.output, plan.cut);
  } else {
    reduce_scatter<ProtocolOf, Type, 0>(mem, group, *lane.launch.scratch, plan.input, plan.output, plan.cut,
                                        AnyOp{lane.launch.op});
  }
}

template <template <class> class ProtocolOf, bool two, class Type, int ranks, bool once, class Memory>
KernelRow row_of(const char* name, ScratchKind scratch) {
  using P = ProtocolOf<Memory>;
  KernelRow row;
  row.name = name;
  row.dtype = Type::kDType;
  row.once = once;
  row.ranks = ranks;
  row.kernel = kernel<ProtocolOf, two, Type, ranks, once, Memory>;
  row.scratch = scratch;
  row.buffers = P::kBuffers;
  row.phases = two ? 2 : 1;
  row.unit_bytes = P::Unit::kBytes;
  row.slot_bytes = P::kSlotBytes;
  row.push = P::kPush;
  row.collective = Collective::kAllReduce;
  return row;
}

// A broadcast is an all-gather, a reduce is a reduce-scatter, with one part that is not empty.
template <template <class> class ProtocolOf, Collective collective, class Memory = SimMemory>
void add_exchange(std::vector<KernelRow>& rows, const char* name, ScratchKind scratch, Collective as = collective) {
  KernelRow row = row_of<ProtocolOf, false, Float32, 0, false, Memory>(name, scratch);
  row.kernel = exchange_kernel<ProtocolOf, collective, Float32, Memory>;
  row.collective = as;
  rows.push_back(row);
}

// Rows of one algorithm, for float32: as shipped, unrolled and with one unit per thread.
template <template <class> class ProtocolOf, bool two, class Memory = SimMemory>
void add_float32(std::vector<KernelRow>& rows, const char* name, ScratchKind scratch) {
  rows.push_back(row_of<ProtocolOf, two, Float32, 0, false, Memory>(name, scratch));
  rows.push_back(row_of<ProtocolOf, two, Float32, 2, false, Memory>(name, scratch));
  if constexpr (ProtocolOf<Memory>::kPush) {
    rows.push_back(row_of<ProtocolOf, two, Float32, 2, true, Memory>(name, scratch));
    rows.push_back(row_of<ProtocolOf, two, Float32, 3, true, Memory>(name, scratch));
  }
}
template <template <class> class ProtocolOf, bool two, class Type, class Memory = SimMemory>
void add_type(std::vector<KernelRow>& rows, const char* name, ScratchKind scratch) {
  rows.push_back(row_of<ProtocolOf, two, Type, 0, false, Memory>(name, scratch));
}
template <template <class> class ProtocolOf, bool two, class Memory = SimMemory>
void add_mutant(std::vector<KernelRow>& rows, const char* name, ScratchKind scratch) {
  rows.push_back(row_of<ProtocolOf, two, Float32, 0, false, Memory>(name, scratch));
}

void add_shipped(std::vector<KernelRow>& rows);
void add_exchanges(std::vector<KernelRow>& rows);
void add_pulls(std::vector<KernelRow>& rows);
void add_lines(std::vector<KernelRow>& rows);
void add_buffers(std::vector<KernelRow>& rows);
void add_mutants(std::vector<KernelRow>& rows);

}  // namespace llcoll::sim
