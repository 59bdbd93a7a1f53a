// LL in 8-byte packets over host memory: ranks are threads. Right across the wrap of the 4-byte flag, where a slot left
// from one period before must not pass for a new one.
#include <atomic>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "llcoll/group.h"
#include "llcoll/host_memory.h"
#include "llcoll/ll_narrow.h"
#include "llcoll/two_shot.h"
#include "ranks.h"

namespace {

using namespace llcoll;
using Memory = HostMemory;
using Narrow = LlNarrow<Memory>;
constexpr uint64_t kPeriod = 0xFFFFFFFFu;

struct Wait final : HostWait {
  std::atomic<bool>& stop;
  explicit Wait(std::atomic<bool>& s) : stop(s) {}
  bool wait_on(Patience& patience, int, uint64_t) override {
    const auto now = static_cast<uint64_t>(Clock::now().time_since_epoch().count());
    if (patience.start_ns == 0) patience.start_ns = now;
    if (now - patience.start_ns > 20'000'000'000u) stop = true;
    std::this_thread::yield();
    return !stop;
  }
  void stop_waiting() override {}
  bool aborted() const override { return stop; }
};

struct World {
  int num_ranks;
  ScratchShape shape;
  std::vector<std::vector<Packet>> buffers;
  std::atomic<bool> stop{false};

  World(int n, uint32_t slots, uint64_t first_epoch)
      : num_ranks(n), shape(make_shape(slots, 1, Narrow::kBuffers, Narrow::kSlotBytes, 0, n)) {
    for (int r = 0; r < n; ++r) {
      buffers.emplace_back(shape.bytes() / sizeof(Packet) + 1);
      *scratch(r).record(0) = Record::make(first_epoch, 0, uint32_t(first_epoch % Narrow::kBuffers));
    }
  }
  Scratch scratch(int rank) {
    Scratch s{};
    s.shape = shape;
    s.rank = rank;
    for (size_t r = 0; r < buffers.size(); ++r) s.memory[r] = reinterpret_cast<char*>(buffers[r].data());
    find_records(s);
    return s;
  }
  void set_epoch(uint64_t epoch) {
    for (int r = 0; r < num_ranks; ++r) {
      *scratch(r).record(0) = Record::make(epoch, 0, uint32_t(epoch % Narrow::kBuffers));
    }
  }
};

int32_t value_at(size_t i, int rank, uint32_t call) { return int32_t(i * 2654435761u) + rank * 7919 + int32_t(call); }

std::string all_reduce(World& world, int rank, bool two, uint32_t call, size_t numel) {
  Wait wait(world.stop);
  Memory mem{&wait};
  std::vector<int32_t> x(numel);
  for (size_t i = 0; i < numel; ++i) x[i] = value_at(i, rank, call);
  const size_t bytes = numel * 4;
  const uint32_t regions = push_regions(two ? 2 : 1, world.num_ranks);
  const uint32_t max_chunk = world.shape.slots_per_channel / regions / kStrideUnits * kStrideUnits;
  const Plan plan = make_plan((bytes + 7) / 8, two ? world.num_ranks : 1, 1, max_chunk);
  const Message message = make_message(x.data(), x.data(), bytes, 4, 8, true, true);
  const Scratch scratch = world.scratch(rank);
  if (two) {
    two_shot<LlNarrow, Int32, 0>(mem, Solo{}, scratch, message, plan, SumOp{});
  } else {
    one_shot<LlNarrow, Int32, 0>(mem, Solo{}, scratch, message, plan, SumOp{});
  }
  if (world.stop) return "a rank did not arrive";
  for (size_t i = 0; i < numel; ++i) {
    int32_t expected = 0;
    for (int r = 0; r < world.num_ranks; ++r) expected += value_at(i, r, call);
    if (x[i] != expected) return concat("call ", call, " of ", numel, " at ", i, ": ", x[i], " not ", expected);
  }
  return "";
}

void run_calls(World& world, uint32_t first_call, uint32_t num_calls, size_t largest, size_t usual = 9) {
  std::vector<std::string> errors(world.num_ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world.num_ranks; ++rank) {
    threads.emplace_back([&, rank] {
      std::mt19937 dice(first_call);
      for (uint32_t call = 0; call < num_calls && errors[rank].empty(); ++call) {
        const size_t numel = 1 + dice() % (dice() % 3 == 0 ? largest + 1 : usual);  // an empty call orders nothing
        errors[rank] = all_reduce(world, rank, dice() % 2 == 0, first_call + call, numel);
        if (!errors[rank].empty()) world.stop = true;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (const std::string& error : errors) EXPECT_EQ(error, std::string());
}

void test_two_ranks() {
  World world(2, 512, 0);
  run_calls(world, 0, 2000, 300);
}
void test_three_ranks_in_chunks() {
  World world(3, 64, 5);
  run_calls(world, 0, 1000, 300);
}
void test_wrap_of_the_flag() {
  for (uint64_t turn : {kPeriod, 2 * kPeriod, uint64_t{1} << 32, uint64_t{1} << 63}) {
    World world(2, 64, turn - 30);
    run_calls(world, 0, 60, 100);
  }
}
void test_flags() {
  EXPECT_EQ(narrow_flag(0), 1u);
  EXPECT_EQ(narrow_flag(kPeriod - 1), 0xFFFFFFFFu);
  EXPECT_EQ(narrow_flag(kPeriod), 1u);
}

// One period later, to the epoch: every flag that is awaited lies in the slots already, unless they were scrubbed. A
// rank that comes late shows it: its peer must wait for it and not take the old packets.
void test_a_period_later() {
  constexpr uint32_t kSlots = 64;
  World world(2, kSlots, 0);
  // Long messages leave their flags in all slots of the three buffers: epochs 1 to 3, in two-shot's four regions.
  for (uint32_t call = 0; call < 3; ++call) {
    std::thread other([&] { EXPECT_EQ(all_reduce(world, 1, true, call, 64), std::string()); });
    EXPECT_EQ(all_reduce(world, 0, true, call, 64), std::string());
    other.join();
  }
  // What a run of one-word calls scrubs in one turn over all slots.
  run_calls(world, 100, Narrow::kBuffers * kSlots + 8, 0, 1);
  world.set_epoch(kPeriod);
  for (uint32_t call = 0; call < 3; ++call) {
    std::string late;
    std::thread other([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      late = all_reduce(world, 1, true, 200 + call, 64);
    });
    const std::string early = all_reduce(world, 0, true, 200 + call, 64);
    other.join();
    EXPECT_EQ(early, std::string());
    EXPECT_EQ(late, std::string());
  }
}

constexpr Test kTests[] = {
    TEST(two_ranks), TEST(three_ranks_in_chunks), TEST(wrap_of_the_flag), TEST(flags), TEST(a_period_later),
};

}  // namespace

int main(int argc, char** argv) { return run_main(kTests, argc, argv, false); }
