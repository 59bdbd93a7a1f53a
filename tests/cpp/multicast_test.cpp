// LL and sentinel with multicast broadcasts over host memory: ranks are threads.
#include <atomic>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "llcoll/group.h"
#include "llcoll/multicast.h"
#include "llcoll/two_shot.h"
#include "multicast_memory.h"
#include "ranks.h"

namespace {

using Memory = MulticastMemory;

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

template <template <class> class ProtocolOf>
struct World {
  using Protocol = ProtocolOf<Memory>;
  int num_ranks;
  ScratchShape shape;
  std::vector<char*> buffers;
  std::atomic<bool> stop{false};

  World(int n, uint32_t slots, int fill)
      : num_ranks(n), shape(make_shape(slots, 1, Protocol::kBuffers, Protocol::kSlotBytes, 0, n)) {
    for (int r = 0; r < n; ++r) {
      buffers.push_back(static_cast<char*>(std::aligned_alloc(4096, (shape.bytes() + 4095) / 4096 * 4096)));
      std::memset(buffers[r], 0, shape.bytes());
      std::memset(buffers[r], fill, shape.slots_bytes());
    }
  }
  ~World() {
    for (char* buffer : buffers) std::free(buffer);
  }
  Scratch scratch(int rank) const {
    Scratch s{};
    s.shape = shape;
    s.rank = rank;
    for (int r = 0; r < num_ranks; ++r) s.memory[r] = buffers[r];
    s.multicast = Memory::base();
    find_records(s);
    return s;
  }
};

float value_at(size_t i, int rank, uint32_t call) {
  return static_cast<float>(static_cast<int>((i * 7 + size_t(rank) * 13 + call * 5) % 31) - 12);
}

template <template <class> class ProtocolOf>
std::string all_reduce(World<ProtocolOf>& world, int rank, bool two, uint32_t call, size_t numel) {
  Wait wait(world.stop);
  const Scratch scratch = world.scratch(rank);
  Memory mem(&wait, scratch.memory, world.num_ranks);
  std::vector<float> x(numel);
  for (size_t i = 0; i < numel; ++i) x[i] = value_at(i, rank, call);
  constexpr int kUnit = int{sizeof(typename ProtocolOf<Memory>::Unit)};
  const uint32_t regions = push_regions(two ? 2 : 1, world.num_ranks);
  const uint32_t max_chunk = world.shape.slots_per_channel / regions / kStrideUnits * kStrideUnits;
  const Plan plan = make_plan((numel * 4 + kUnit - 1) / kUnit, two ? world.num_ranks : 1, 1, max_chunk);
  const Message message = make_message(x.data(), x.data(), numel * 4, 4, kUnit, true, true);
  if (two) {
    two_shot<ProtocolOf, Float32, 0>(mem, Solo{}, scratch, message, plan, SumOp{});
  } else {
    one_shot<ProtocolOf, Float32, 0>(mem, Solo{}, scratch, message, plan, SumOp{});
  }
  if (world.stop) return "a rank did not arrive";
  for (size_t i = 0; i < numel; ++i) {
    float expected = 0;
    for (int r = 0; r < world.num_ranks; ++r) expected += value_at(i, r, call);
    if (x[i] != expected) return concat("call ", call, " of ", numel, " at ", i, ": ", x[i], " not ", expected);
  }
  return "";
}

template <template <class> class ProtocolOf>
void run_calls(int num_ranks, uint32_t slots, int fill, uint32_t num_calls, size_t largest) {
  World<ProtocolOf> world(num_ranks, slots, fill);
  std::vector<std::string> errors(num_ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < num_ranks; ++rank) {
    threads.emplace_back([&, rank] {
      std::mt19937 dice(slots);
      for (uint32_t call = 0; call < num_calls && errors[rank].empty(); ++call) {
        const size_t numel = 1 + dice() % (dice() % 3 == 0 ? largest : 20);
        errors[rank] = all_reduce(world, rank, dice() % 2 == 0, call, numel);
        if (!errors[rank].empty()) world.stop = true;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (const std::string& error : errors) EXPECT_EQ(error, std::string());
}

void test_ll_2() { run_calls<LlMulticast>(2, 4096, 0, 2000, 2000); }
void test_ll_5() { run_calls<LlMulticast>(5, 4096, 0, 300, 500); }
void test_ll_chunks() { run_calls<LlMulticast>(3, 64, 0, 500, 500); }
void test_sentinel_2() { run_calls<SentinelMulticast>(2, 4096, 0xFF, 2000, 8000); }
void test_sentinel_5() { run_calls<SentinelMulticast>(5, 4096, 0xFF, 300, 4000); }
void test_sentinel_chunks() { run_calls<SentinelMulticast>(3, 64, 0xFF, 500, 3000); }

constexpr Test kTests[] = {
    TEST(ll_2), TEST(ll_5), TEST(ll_chunks), TEST(sentinel_2), TEST(sentinel_5), TEST(sentinel_chunks),
};

}  // namespace

int main(int argc, char** argv) { return run_main(kTests, argc, argv, false); }
