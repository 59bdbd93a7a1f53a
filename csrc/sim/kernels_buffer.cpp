// Kernels over the shipped LLBuffer: the forms of ll_group.h, and a ring by its single calls.
#include "llcoll/ll_group.h"
#include "sim/kernels.h"

namespace llcoll::sim {

// What a user's kernel would specialise for a type of its own.
struct Quad {
  float x[4];
};

}  // namespace llcoll::sim

namespace llcoll {
inline namespace LLC_ISA {
template <>
struct ElementOf<sim::Quad> : ElementOf<float> {};
}  // namespace LLC_ISA
}  // namespace llcoll

namespace llcoll::sim {
namespace {

// Mistakes in the use of the buffer.
enum class Misuse { kNone, kNoReset, kNoBarrier };

template <class T>
T plus(T a, T b) {
  if constexpr (std::is_same_v<T, float>) {
    return a + b;
  } else {
    for (int k = 0; k < 4; ++k) a.x[k] += b.x[k];
    return a;
  }
}

template <class T, class Memory>
T read_user(const Memory& mem, const char* from, uint64_t i) {
  return __builtin_bit_cast(T, mem.template read<Bytes<sizeof(T)>>(from + i * sizeof(T)));
}
template <class T, class Memory>
void write_user(const Memory& mem, char* to, uint64_t i, const T& value) {
  mem.write(to + i * sizeof(T), __builtin_bit_cast(Bytes<sizeof(T)>, value));
}

template <LlMode mode, class T, BufferUse use, bool multicast, bool by_range, Misuse misuse>
void buffer_kernel(Lane& lane) {
  using Buffer = LLBuffer<mode, SimMemory, SimCta<false>, multicast>;
  SimMemory mem{&lane, 0};
  lane.world.grid_wait(lane.thread);
  if (lane.world.program().early_trigger) lane.world.trigger(lane.thread);
  const Message& message = lane.launch.message;
  const Plan& plan = lane.launch.plan;
  Buffer buffer(mem, SimCta<false>(lane), *lane.launch.buffer);
  const auto group = buffer.group();
  const uint32_t begin = group.channel * plan.per_channel;
  const uint32_t end = begin + plan.per_channel < plan.part ? begin + plan.per_channel : plan.part;
  const uint32_t count = begin < end ? end - begin : 0;
  const auto read = [&](uint32_t i) { return read_user<T>(mem, message.input, begin + i); };
  const auto write = [&](uint32_t i, T value) { write_user(mem, message.output, begin + i, value); };
  const auto same = [](T x) { return x; };
  constexpr bool kSingle = use == BufferUse::kRing || by_range || misuse == Misuse::kNoReset;
  constexpr bool kReset = mode == LlMode::kSentinel && !by_range && misuse != Misuse::kNoReset;
  const int ranks = buffer.num_ranks(), rank = buffer.rank();
  bool good = true;
  if constexpr (kSingle) {
    good = for_each_chunk<T>(buffer, count, true, [&](uint32_t first, uint32_t n, uint32_t stride) {
      if constexpr (use == BufferUse::kRing) {
        const int next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
        group.each(n, [&](uint32_t i) { buffer.template send<T>(next, i, read(first + i)); });
        group.each(n, [&](uint32_t i) { write(first + i, buffer.template recv<T, kReset>(i, previous)); });
        if constexpr (misuse != Misuse::kNoBarrier) buffer.barrier();
      } else {
        const uint32_t own = static_cast<uint32_t>(rank) * stride;
        // What the last epoch used: peers come back there in the next but one.
        if constexpr (by_range) buffer.template reset_range<T>(0, static_cast<uint32_t>(ranks) * stride, 1);
        group.each(n, [&](uint32_t i) { buffer.template bcast<2, T>(own + i, read(first + i)); });
        group.each(n, [&](uint32_t i) {
          write(first + i, buffer.template recv_reduce<2, T, kReset>(i, ranks, stride, same, plus<T>, 0));
        });
      }
    });
  } else if constexpr (use == BufferUse::kAllReduce) {
    good = ll_all_reduce<2, T>(buffer, count, read, same, plus<T>, write, true);
  } else if constexpr (use == BufferUse::kAllGather) {
    good = ll_all_gather<2, T>(
        buffer, count, read,
        [&](int source, uint32_t i, T value) {
          write_user(mem, message.output, uint64_t(source) * plan.part + begin + i, value);
        },
        true);
  } else {
    good = ll_all_to_all<T>(
        buffer, count,
        [&](int peer, uint32_t i) { return read_user<T>(mem, message.input, uint64_t(peer) * plan.part + begin + i); },
        [&](int source, uint32_t i, T value) {
          write_user(mem, message.output, uint64_t(source) * plan.part + begin + i, value);
        },
        true);
  }
  if (!good) lane.world.mark_failed(lane.thread);
  group.trigger();
}

template <LlMode mode, BufferUse use, class T = float, bool multicast = false, bool by_range = false,
          Misuse misuse = Misuse::kNone>
void add(std::vector<KernelRow>& rows, const char* name, int num_parts = 2) {
  KernelRow row{};
  row.name = name;
  row.dtype = DType::kFloat32;
  row.kernel = buffer_kernel<mode, T, use, multicast, by_range, misuse>;
  row.unit_bytes = sizeof(T);
  row.collective = use == BufferUse::kAllGather  ? Collective::kAllGather
                   : use == BufferUse::kAllToAll ? Collective::kAllToAll
                                                 : Collective::kAllReduce;
  row.buffer = use;
  row.mode = mode;
  row.num_parts = num_parts;
  rows.push_back(row);
}

template <LlMode mode>
void add_all(std::vector<KernelRow>& rows, const char* reduce, const char* gather, const char* exchange,
             const char* ring, const char* multicast) {
  add<mode, BufferUse::kAllReduce>(rows, reduce);
  add<mode, BufferUse::kAllGather>(rows, gather);
  add<mode, BufferUse::kAllToAll>(rows, exchange);
  add<mode, BufferUse::kRing>(rows, ring);
  add<mode, BufferUse::kAllReduce, float, true>(rows, multicast);
}

}  // namespace

void add_buffers(std::vector<KernelRow>& rows) {
  constexpr auto kLl = LlMode::kLl, kNarrow = LlMode::kLlNarrow, kSentinel = LlMode::kSentinel;
  constexpr auto kSum = BufferUse::kAllReduce, kRing = BufferUse::kRing;
  add_all<kLl>(rows, "buffer_all_reduce_ll", "buffer_all_gather_ll", "buffer_all_to_all_ll", "buffer_ring_ll",
               "buffer_multicast_ll");
  add_all<kNarrow>(rows, "buffer_all_reduce_narrow", "buffer_all_gather_narrow", "buffer_all_to_all_narrow",
                   "buffer_ring_narrow", "buffer_multicast_narrow");
  add_all<kSentinel>(rows, "buffer_all_reduce_sentinel", "buffer_all_gather_sentinel", "buffer_all_to_all_sentinel",
                     "buffer_ring_sentinel", "buffer_multicast_sentinel");
  // Elements of several packets, and a slot of 16 bytes.
  add<kLl, kSum, Quad>(rows, "buffer_wide_ll");
  add<kNarrow, kSum, Quad>(rows, "buffer_wide_narrow");
  add<kSentinel, kSum, Quad>(rows, "buffer_wide_sentinel");
  add<kSentinel, kSum, float, false, true>(rows, "buffer_reset_range", 3);
  // Misused
  add<kLl, kSum>(rows, "buffer_all_reduce_ll.one_part", 1);
  add<kSentinel, kSum, float, false, false, Misuse::kNoReset>(rows, "buffer_all_reduce_sentinel.no_reset");
  add<kSentinel, kSum, float, false, true>(rows, "buffer_reset_range.two_parts", 2);
  add<kLl, kRing, float, false, false, Misuse::kNoBarrier>(rows, "buffer_ring_ll.no_barrier");
  add<kSentinel, kRing, float, false, false, Misuse::kNoBarrier>(rows, "buffer_ring_sentinel.no_barrier");
}

}  // namespace llcoll::sim
