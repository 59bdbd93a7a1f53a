// LLBuffer on the CPU: all types and modes, epochs, resets, wraps, the ring, failures.
#include <cmath>
#include <limits>
#include <random>

#include "buffer_world.h"

namespace {

struct Three {
  unsigned char bytes[3];
};
struct Twelve {
  uint32_t words[3];
};
struct Pair {  // two floats that may go by sentinel
  float x, y;
};

}  // namespace

namespace llcoll {
template <>
struct ElementOf<Pair> : ElementOf<float> {};
}  // namespace llcoll

namespace {

// `num_calls` all-to-alls of random counts, several launches of random length each; every element checked.
template <LlMode mode, class T, class Group = Solo>
std::string all_to_alls(const Buffers& buffers, int rank, const Group& group, uint32_t capacity, uint64_t num_calls) {
  const LlArgs args = buffers.args(rank);
  LlHostWait wait(args.wait);
  std::minstd_rand random(7);  // the same on every rank
  uint64_t call = 0;
  while (call < num_calls) {
    group.sync();  // as the end of a kernel: the record is written
    HostBuffer<mode, Group> buffer({&wait}, group, args.buffer);
    const uint64_t end = std::min<uint64_t>(num_calls, call + 1 + random() % 4);
    for (; call < end; ++call) {
      const uint32_t count = random() % (3 * capacity);
      bool right = true;
      const bool arrived = ll_all_to_all<T>(
          buffer, count, [&](int peer, uint32_t i) { return value_of<T>(rank, peer, call, i); },
          [&](int source, uint32_t i, const T& got) { right &= same<mode>(value_of<T>(source, rank, call, i), got); },
          call + 1 == end);
      if (!arrived) return concat("call ", call, ": rank ", buffers.failure(rank).culprit, " is missing");
      if (!right) return concat("call ", call, " of ", count, ": wrong");
    }
  }
  return "ok";
}

template <LlMode mode, class T>
void exchange(int num_ranks, uint32_t round_robin, uint32_t capacity = 5, uint64_t num_calls = 60,
              uint64_t first_epoch = 0) {
  const Buffers buffers(mode, make_buffer_shape(mode, capacity, sizeof(T), num_ranks, 1, round_robin));
  buffers.start_at(first_epoch);
  expect_all(
      run_ranks(num_ranks,
                [&](Rank& self) { return all_to_alls<mode, T>(buffers, self.rank, Solo{}, capacity, num_calls); }),
      "ok");
}

template <LlMode mode>
void all_types() {
  for (const int num_ranks : {1, 2, 3}) {
    for (const uint32_t parts : {2u, 3u}) {
      exchange<mode, uint8_t>(num_ranks, parts);
      exchange<mode, uint16_t>(num_ranks, parts);
      exchange<mode, Three>(num_ranks, parts);
      exchange<mode, float>(num_ranks, parts);
      exchange<mode, double>(num_ranks, parts);
      exchange<mode, Pair>(num_ranks, parts, 4, 20);
    }
  }
}
void test_types_ll() {
  all_types<LlMode::kLl>();
  exchange<LlMode::kLl, int32_t>(2, 2);
  exchange<LlMode::kLl, Twelve>(3, 2);
  exchange<LlMode::kLl, Bytes<16>>(2, 2);
}
void test_types_narrow() {
  all_types<LlMode::kLlNarrow>();
  exchange<LlMode::kLlNarrow, int64_t>(2, 2);
  exchange<LlMode::kLlNarrow, Twelve>(3, 2);
}
void test_types_sentinel() { exchange<LlMode::kSentinel, float>(5, 2), all_types<LlMode::kSentinel>(); }

// Several members per rank and several blocks: the barrier of advance_epoch holds members that have nothing to do.
template <LlMode mode>
void in_groups() {
  constexpr int kRanks = 2;
  constexpr uint32_t kMembers = 3, kBlocks = 2, kCapacity = 5;
  const Buffers buffers(mode, make_buffer_shape(mode, kCapacity, sizeof(float), kRanks, kBlocks, 2));
  std::vector<std::thread> threads;
  std::vector<std::unique_ptr<Team>> teams;
  std::vector<std::string> results(kRanks * kBlocks * kMembers);
  for (int rank = 0; rank < kRanks; ++rank) {
    for (uint32_t block = 0; block < kBlocks; ++block) {
      Team* team = teams.emplace_back(std::make_unique<Team>(kMembers)).get();
      for (uint32_t member = 0; member < kMembers; ++member) {
        std::string& result = results[(rank * kBlocks + block) * kMembers + member];
        threads.emplace_back([=, &buffers, &result] {
          const Threads group{member, kMembers, block, team};
          result = all_to_alls<mode, float>(buffers, rank, group, kCapacity, 40);
        });
      }
    }
  }
  for (std::thread& thread : threads) thread.join();
  expect_all(results, "ok");
}
void test_groups_ll() { in_groups<LlMode::kLl>(); }
void test_groups_narrow() { in_groups<LlMode::kLlNarrow>(); }
void test_groups_sentinel() { in_groups<LlMode::kSentinel>(); }

// What travels by sentinel is what was sent, but for the one pattern.
template <class T, class Word>
void travel_by_sentinel(std::initializer_list<Word> patterns, Word all_ones) {
  const Buffers buffers(LlMode::kSentinel, make_buffer_shape(LlMode::kSentinel, 1, sizeof(T), 2, 1, 2));
  const auto body = [&](Rank& self) -> std::string {
    const LlArgs args = buffers.args(self.rank);
    LlHostWait wait(args.wait);
    HostBuffer<LlMode::kSentinel> buffer({&wait}, {}, args.buffer);
    for (const Word bits : patterns) {
      buffer.template send<T>(1 - self.rank, 0, bits_as<T>(bits));
      const Word got = bits_as<Word>(buffer.template recv<T, true>(0));
      buffer.advance_epoch();
      if (bits != all_ones) EXPECT_EQ(got, bits);
      if (bits == all_ones) EXPECT(got != all_ones && bits_as<T>(got) != bits_as<T>(got));
    }
    return "ok";
  };
  expect_all(run_ranks(2, body), "ok");
}
void test_sentinel_bits() {
  travel_by_sentinel<float, uint32_t>(
      {0xFFFFFFFFu, 0x80000000u, 0u, 1u, 0x80000001u, 0x7F800000u, 0xFF800000u, 0x7FC00000u, 0x7FFFFFFFu, 0xFFFFFFFEu},
      0xFFFFFFFFu);
  // A finite double can have an all-ones half.
  travel_by_sentinel<double, uint64_t>({~0ull, 0x3FF00000FFFFFFFFull, 0xFFFFFFFF00000000ull, 0xFFFFFFFFull, 1ull << 63,
                                        0x7FF0000000000000ull, 0xFFFFFFFFFFFFFFFEull},
                                       ~0ull);
}

void test_flag_wraps() {
  constexpr uint64_t kPeriod = 0xFFFFFFFF;
  for (const uint64_t first : {kPeriod - 20, 2 * kPeriod - 20, (uint64_t{1} << 32) - 20, kPeriod << 32}) {
    exchange<LlMode::kLlNarrow, uint32_t>(2, 2, 3, 60, first);
    exchange<LlMode::kLlNarrow, double>(2, 3, 3, 60, first);
    exchange<LlMode::kLl, uint32_t>(2, 2, 3, 60, first);
  }
}

// After one message, epochs that use other slots: none of its flags is left for a later epoch to mistake.
void test_scrub() {
  constexpr uint32_t kSlots = 32, kParts = 2;
  const Buffers buffers(LlMode::kLlNarrow, make_buffer_shape(LlMode::kLlNarrow, kSlots / 2, 4, 2, 1, kParts));
  const auto body = [&](Rank& self) -> std::string {
    const LlArgs args = buffers.args(self.rank);
    LlHostWait wait(args.wait);
    HostBuffer<LlMode::kLlNarrow> buffer({&wait}, {}, args.buffer);
    const uint32_t num_slots = buffer.capacity<uint32_t>();
    for (uint32_t s = 0; s < num_slots; ++s) buffer.send(1 - self.rank, s, ~s);
    for (uint32_t s = 0; s < num_slots; ++s) EXPECT_EQ(buffer.recv<uint32_t>(s), ~s);
    buffer.advance_epoch();
    for (uint32_t k = 0; k < kParts * num_slots; ++k) {
      buffer.send(1 - self.rank, 0, k);
      EXPECT_EQ(buffer.recv<uint32_t>(0), k);
      buffer.advance_epoch();
    }
    const char* first = buffers.memory(self.rank) + buffers.shape().slots_offset(0, 0);
    for (uint32_t s = 1; s < kParts * num_slots; ++s) {
      EXPECT_EQ(reinterpret_cast<const NarrowPacket*>(first)[s].flag, 0u);
    }
    return "ok";
  };
  expect_all(run_ranks(2, body), "ok");
}

// Three parts: a range of the epoch before is cleared, off the path of the message.
void test_reset_range() {
  constexpr int kRanks = 3;
  constexpr uint32_t kCount = 7;
  const Buffers buffers(LlMode::kSentinel, make_buffer_shape(LlMode::kSentinel, kCount, 8, kRanks, 1, 3));
  const auto body = [&](Rank& self) -> std::string {
    const LlArgs args = buffers.args(self.rank);
    LlHostWait wait(args.wait);
    for (uint64_t call = 0; call < 50; ++call) {  // one kernel each
      HostBuffer<LlMode::kSentinel> buffer({&wait}, {}, args.buffer);
      for (uint32_t i = 0; i < kCount; ++i)
        buffer.bcast(self.rank * kCount + i, double(call * 100 + self.rank * 10 + i));
      for (uint32_t s = 0; s < kRanks * kCount; ++s) {
        EXPECT_EQ(buffer.recv<double>(s), double(call * 100 + s / kCount * 10 + s % kCount));
      }
      buffer.reset_range<double>(0, kRanks * kCount, 1);
      buffer.advance_epoch(true);
    }
    return "ok";
  };
  expect_all(run_ranks(kRanks, body), "ok");
}

// recv_reduce adds in slot order whatever `unroll` is: bits say so. recv_unrolled leaves what is past `count`.
template <int unroll>
std::string reduce_in_order(const Buffers& buffers, int rank, int num_ranks) {
  const LlArgs args = buffers.args(rank);
  LlHostWait wait(args.wait);
  HostBuffer<LlMode::kLl> buffer({&wait}, {}, args.buffer);
  const auto term = [](int source, uint64_t call) {
    return static_cast<float>(std::ldexp(1.0 + static_cast<double>(mix(call * 99 + source) % 1000) / 999,
                                         static_cast<int>(mix(source + call) % 40) - 20));
  };
  for (uint64_t call = 0; call < 30; ++call) {
    if (static_cast<int>(call) % num_ranks == rank) usleep(200);
    buffer.bcast<3>(rank, term(rank, call));
    const float got = buffer.recv_reduce<unroll, float>(
        0, num_ranks, 1, [](float x) { return x; }, [](float a, float b) { return a + b; }, 0);
    float want = term(0, call);
    for (int source = 1; source < num_ranks; ++source) want += term(source, call);
    EXPECT_EQ(bits_as<uint32_t>(got), bits_as<uint32_t>(want));
    float some[4] = {-1, -1, -1, -1};
    buffer.recv_unrolled<1, 4, float>(0, 2, 1, some, 0);
    EXPECT(some[0] == term(0, call) && some[1] == term(1, call) && some[2] == -1 && some[3] == -1);
    buffer.advance_epoch();
  }
  return "ok";
}
void test_reduce_in_order() {
  for (const int num_ranks : {2, 5}) {
    const Buffers buffers(LlMode::kLl, make_buffer_shape(LlMode::kLl, 1, 4, num_ranks, 1, 2));
    expect_all(run_ranks(num_ranks, [&](Rank& self) { return reduce_in_order<1>(buffers, self.rank, num_ranks); }),
               "ok");
    expect_all(run_ranks(num_ranks, [&](Rank& self) { return reduce_in_order<4>(buffers, self.rank, num_ranks); }),
               "ok");
  }
}

// Factor 0: one part, its offsets never move; slots of their own and barrier() keep the epochs apart.
void test_fixed_offset() {
  const Buffers buffers(LlMode::kLl, make_buffer_shape(LlMode::kLl, 2, 4, 2, 1, 0));
  const auto body = [&](Rank& self) -> std::string {
    const LlArgs args = buffers.args(self.rank);
    LlHostWait wait(args.wait);
    for (uint32_t call = 0; call < 50; ++call) {
      HostBuffer<LlMode::kLl> buffer({&wait}, {}, args.buffer);
      EXPECT_EQ(buffer.epoch(), uint64_t{call} + 1);
      buffer.send(1 - self.rank, self.rank, call * 2 + self.rank);
      EXPECT_EQ(buffer.recv<uint32_t>(1 - self.rank), call * 2 + 1 - self.rank);
      const Packet* slot = reinterpret_cast<const Packet*>(buffers.memory(self.rank) + BufferShape::kControlBytes);
      EXPECT_EQ(slot[1 - self.rank].flag, uint64_t{call} + 1);
      buffer.advance_epoch();
      buffer.barrier();
      if (call % 2 == 0) buffer.barrier();  // their count outlives the kernel
    }
    return "ok";
  };
  expect_all(run_ranks(2, body), "ok");
}

// A ring: each rank sends to the next and receives from the one before. Nothing comes back from whom it sends to, so
// the bidirectional rule does not hold.
std::string ring(const Buffers& buffers, Rank& self) {
  constexpr uint32_t kSteps = 8;
  const LlArgs args = buffers.args(self.rank, 1);
  LlHostWait wait(args.wait);
  const int n = self.world_size;
  HostBuffer<LlMode::kLl> buffer({&wait}, {}, args.buffer);
  self.barrier();
  if (self.rank == 1) usleep(100'000);
  for (uint32_t step = 0; step < kSteps; ++step) {
    buffer.send((self.rank + 1) % n, 0, step * 100 + self.rank);
    const uint32_t got = buffer.recv<uint32_t>(0, (self.rank + n - 1) % n);
    if (buffer.failed()) return "lost";
    EXPECT_EQ(got, step * 100 + (self.rank + n - 1) % n);
    buffer.advance_epoch();
    buffer.barrier();
  }
  return "ok";
}
void test_ring_with_barrier() {
  for (const int n : {2, 3, 4}) {
    const Buffers buffers(LlMode::kLl, make_buffer_shape(LlMode::kLl, 1, 4, n, 1, 2));
    expect_all(run_ranks(n, [&](Rank& self) { return ring(buffers, self); }), "ok");
  }
}
// Rank 0 is a source that nobody answers: without the barrier it overwrites what rank 1 has not read.
template <bool with_barrier>
std::string pipeline(const Buffers& buffers, Rank& self) {
  const LlArgs args = buffers.args(self.rank, 1);
  LlHostWait wait(args.wait);
  HostBuffer<LlMode::kLl> buffer({&wait}, {}, args.buffer);
  self.barrier();
  if (self.rank == 1) usleep(200'000);
  for (uint32_t step = 0; step < 8; ++step) {
    if (self.rank == 0) buffer.send(1, 0, step);
    if (self.rank == 1) {
      const uint32_t got = buffer.recv<uint32_t>(0, 0);
      if (buffer.failed()) return "lost";
      EXPECT_EQ(got, step);
    }
    buffer.advance_epoch();
    if (with_barrier) buffer.barrier();
  }
  return "ok";
}
void test_one_way_needs_barrier() {
  const BufferShape shape = make_buffer_shape(LlMode::kLl, 1, 4, 2, 1, 2);
  const Buffers with(LlMode::kLl, shape), without(LlMode::kLl, shape);
  expect_all(run_ranks(2, [&](Rank& self) { return pipeline<true>(with, self); }), "ok");
  const auto results = run_ranks(2, [&](Rank& self) { return pipeline<false>(without, self); });
  EXPECT_EQ(results[1], std::string("lost"));
}

// A rank that does not come: the others' waits end, name it, send nothing more, and so does every later kernel.
template <LlMode mode>
void missing_rank() {
  constexpr int kRanks = 3;
  const Buffers buffers(mode, make_buffer_shape(mode, 2, 4, kRanks, 1, 2));
  const auto body = [&](Rank& self) -> std::string {
    if (self.rank == 2) return "absent";
    const LlArgs args = buffers.args(self.rank, 0.3);
    LlHostWait wait(args.wait);
    const auto start = Clock::now();
    for (int kernel = 0; kernel < 2; ++kernel) {
      HostBuffer<mode> buffer({&wait}, {}, args.buffer);
      EXPECT_EQ(buffer.failed(), kernel == 1);
      float got[2] = {0, 0};
      const bool arrived = ll_all_reduce<4, float>(
          buffer, 2, [](uint32_t) { return 1.0f; }, [](float x) { return x; }, [](float a, float b) { return a + b; },
          [&](uint32_t i, float sum) { got[i] = sum; });
      EXPECT(!arrived && std::isnan(got[0]) && std::isnan(got[1]));
      buffer.barrier();
      EXPECT(buffer.failed());
    }
    EXPECT(Clock::now() - start < std::chrono::seconds(5));
    EXPECT_EQ(buffers.failure(self.rank).culprit, 2);
    return "ok";
  };
  const auto results = run_ranks(kRanks, body);
  EXPECT_EQ(results[0], std::string("ok"));
  EXPECT_EQ(results[1], std::string("ok"));
  // The late rank sees the abort at once, and leaves.
  const LlArgs args = buffers.args(2);
  LlHostWait wait(args.wait);
  EXPECT(HostBuffer<mode>({&wait}, {}, args.buffer).failed());
}
void test_missing_rank_ll() { missing_rank<LlMode::kLl>(); }
void test_missing_rank_sentinel() { missing_rank<LlMode::kSentinel>(); }

void test_scratch_size() {
  // 10 floats from each of 4 ranks: 40 packets of 16 bytes, a multiple of 128; 2 parts of 3 blocks.
  const BufferShape shape = make_buffer_shape(LlMode::kLl, 10, 4, 4, 3, 2);
  EXPECT_EQ(shape.bytes_per_block, 640u);
  EXPECT_EQ(shape.slots_offset(1, 2), 512u + 5 * 640u);
  EXPECT_EQ(ll_scratch_bytes(LlMode::kLl, 10, 4, 4, 3, 2), 512u + 6 * 640u + 3 * 4 * 16u + 3 * 16u);
  EXPECT_EQ(slot_bytes(LlMode::kLl, 1), 16u);
  EXPECT_EQ(slot_bytes(LlMode::kLl, 9), 32u);
  EXPECT_EQ(slot_bytes(LlMode::kLlNarrow, 2), 8u);
  EXPECT_EQ(slot_bytes(LlMode::kLlNarrow, 12), 32u);
  EXPECT_EQ(slot_bytes(LlMode::kSentinel, 1), 4u);
  EXPECT_EQ(slot_bytes(LlMode::kSentinel, 12), 16u);
  EXPECT_EQ(make_buffer_shape(LlMode::kSentinel, 1, 4, 2, 1, 0).num_parts(), 1u);
}

constexpr Test kTests[] = {
    TEST(types_ll),
    TEST(types_narrow),
    TEST(types_sentinel),
    TEST(groups_ll),
    TEST(groups_narrow),
    TEST(groups_sentinel),
    TEST(sentinel_bits),
    TEST(flag_wraps),
    TEST(scrub),
    TEST(reset_range),
    TEST(reduce_in_order),
    TEST(fixed_offset),
    TEST(ring_with_barrier),
    TEST(one_way_needs_barrier),
    TEST(missing_rank_ll),
    TEST(missing_rank_sentinel),
    TEST(scratch_size),
};

// exchange MODE RANKS PARTS CAPACITY CALLS EPOCH: what tests/test_ll_buffer.py draws.
template <LlMode mode>
void drawn(char** argv) {
  const auto number = [&](int k) { return std::strtoull(argv[k], nullptr, 10); };
  exchange<mode, float>(int(number(3)), uint32_t(number(4)), uint32_t(number(5)), number(6), number(7));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 8 && std::string(argv[1]) == "exchange") {
    const std::string mode = argv[2];
    try {
      mode == "ll"       ? drawn<LlMode::kLl>(argv)
      : mode == "narrow" ? drawn<LlMode::kLlNarrow>(argv)
                         : drawn<LlMode::kSentinel>(argv);
    } catch (const std::exception& error) {
      fprintf(stderr, "%s\n", error.what());
      return 1;
    }
    return 0;
  }
  return run_main(kTests, argc, argv);
}
