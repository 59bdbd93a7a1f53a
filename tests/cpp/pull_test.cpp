// The pulling flag algorithms over host memory: ranks are threads, each with a scratch and a pool behind it. Whether a
// rank's tensors lie in its pool is its own dice; inputs are overwritten as soon as a call returns.
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "llcoll/group.h"
#include "llcoll/host_memory.h"
#include "llcoll/pull.h"
#include "multicast_memory.h"
#include "ranks.h"

namespace {

using Memory = HostMemory;
using Unit = Pull<Memory>::Unit;

constexpr size_t kPoolBytes = 1 << 20;
constexpr size_t kGuard = 256;  // bytes around each tensor, checked

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
  ScratchShape shape{};
  uint64_t pool_offset;
  std::vector<char*> buffers;
  std::atomic<bool> stop{false};

  World(int n, uint32_t slots, uint64_t first_epoch) : num_ranks(n) {
    shape = make_shape(slots, 1, Pull<Memory>::kBuffers, sizeof(Unit), 64, n);
    pool_offset = (shape.bytes() + 4095) / 4096 * 4096;
    for (int r = 0; r < n; ++r) {
      const size_t bytes = pool_offset + kPoolBytes;
      auto* buffer = static_cast<char*>(std::aligned_alloc(4096, bytes));
      std::memset(buffer, 0, bytes);
      for (uint64_t at = shape.slots_bytes(); at < shape.records_offset(); at += shape.ready_bytes) {
        reinterpret_cast<Packet*>(buffer + at)->flag = first_epoch;
      }
      *reinterpret_cast<Record*>(buffer + shape.records_offset()) =
          Record::make(first_epoch, 0, uint32_t(first_epoch % 2));
      buffers.push_back(buffer);
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
    find_records(s);
    s.multicast = MulticastMemory::base();
    return s;
  }
};

// One tensor with guards, in the pool or elsewhere.
struct Tensor {
  char* data;
  size_t num_bytes;
  uint32_t place = 0;
  std::vector<char> own;

  void put(char* pool, size_t offset, size_t bytes, bool in_pool, size_t shift) {
    num_bytes = bytes;
    if (in_pool) {
      data = pool + offset + kGuard;
      place = static_cast<uint32_t>((offset + kGuard) / kPlaceBytes + 1);
    } else {
      own.assign(bytes + 2 * kGuard + 64, 0);
      char* base = own.data() + (64 - reinterpret_cast<uintptr_t>(own.data()) % 64) % 64;
      data = base + kGuard - 64 + shift;
      place = 0;
    }
    std::memset(data - 64, 0x5B, bytes + 128);
  }
  bool guards_hold() const {
    for (size_t i = 0; i < 64; ++i) {
      if (data[-1 - long(i)] != 0x5B || data[num_bytes + i] != 0x5B) return false;
    }
    return true;
  }
};

template <class T>
T value_at(size_t i, int rank, uint32_t call) {
  return static_cast<T>(static_cast<int>((i * 7 + size_t(rank) * 13 + call * 5) % 31) - 12);
}

// kTogether: all ranks draw alike, so that they are all staged or all at one place.
enum class Symmetry { kNone, kAll, kMixed, kTogether };

template <class Type, class T, int ranks, bool at_once, class AnyMemory>
void call_once(World& world, AnyMemory& mem, int rank, bool two, uint32_t call, size_t numel, std::mt19937& own_dice,
               Symmetry symmetry) {
  const size_t bytes = numel * sizeof(T);
  char* pool = world.buffers[rank] + world.pool_offset;
  auto dice = [&] { return symmetry == Symmetry::kAll || (symmetry != Symmetry::kNone && own_dice() % 2 == 0); };
  // Different offsets on every rank and call.
  const size_t room = kPoolBytes / 2 - bytes - 2 * kGuard;
  const size_t input_at = own_dice() % (room / 64) * 64;
  const size_t output_at = kPoolBytes / 2 + own_dice() % (room / 64) * 64;
  Tensor input, output;
  input.put(pool, input_at, bytes, dice(), own_dice() % 4 * sizeof(T));
  const bool in_place = own_dice() % 2 == 0;
  if (!in_place) output.put(pool, output_at, bytes, dice(), own_dice() % 4 * sizeof(T));
  Tensor& result = in_place ? input : output;
  std::vector<T> values(numel);
  for (size_t i = 0; i < numel; ++i) values[i] = value_at<T>(i, rank, call);
  if (bytes != 0) std::memcpy(input.data, values.data(), bytes);

  const Scratch scratch = world.scratch(rank);
  const uint32_t unit = sizeof(Unit);
  const uint32_t regions = pull_regions(two ? 2 : 1, world.num_ranks);
  const uint32_t max_chunk = world.shape.slots_per_channel / regions / kStrideUnits * kStrideUnits;
  const Plan plan = make_plan((bytes + unit - 1) / unit, two ? world.num_ranks : 1, 1, max_chunk);
  const Message message = make_message(input.data, result.data, bytes, sizeof(T), int(unit), true, true);
  const Symmetric symmetric{world.pool_offset, input.place, result.place};
  SoloWithBoard group;
  if (two) {
    two_shot_pull<Type, ranks, at_once>(mem, group, scratch, symmetric, message, plan, SumOp{});
  } else {
    one_shot_pull<Type, ranks, at_once>(mem, group, scratch, symmetric, message, plan, SumOp{});
  }
  std::vector<T> got(numel);
  if (bytes != 0) std::memcpy(got.data(), result.data, bytes);
  EXPECT(!world.stop);
  EXPECT(input.guards_hold() && result.guards_hold());
  for (size_t i = 0; i < numel; ++i) {
    T expected = value_at<T>(i, 0, call);
    for (int r = 1; r < world.num_ranks; ++r) expected += value_at<T>(i, r, call);
    if (got[i] != expected) {
      throw std::logic_error(concat("rank ", rank, " call ", call, two ? " two" : " one", "-shot of ", numel, " at ", i,
                                    ": ", got[i], " instead of ", expected));
    }
  }
  // Nobody may still read or write here.
  std::memset(input.data - 64, 0x7E, bytes + 128);
  if (!in_place) std::memset(output.data - 64, 0x7E, bytes + 128);
}

template <int ranks, bool at_once = false>
void run_calls(int num_ranks, uint32_t slots, uint64_t first_epoch, Symmetry symmetry, uint32_t num_calls) {
  World world(num_ranks, slots, first_epoch);
  std::vector<std::string> errors(num_ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < num_ranks; ++rank) {
    threads.emplace_back([&, rank] {
      Wait wait(world.stop);
      Memory mem{&wait};
      const MulticastMemory multicast(&wait, world.buffers.data(), num_ranks);
      std::mt19937 dice(slots), own_dice(100 + rank), common_dice(3);
      std::mt19937& places = symmetry == Symmetry::kTogether ? common_dice : own_dice;
      try {
        for (uint32_t call = 0; call < num_calls; ++call) {
          const size_t largest[] = {3, 100, 2000, 20000};
          const size_t numel = dice() % (largest[dice() % 4] + 1);
          const bool two = dice() % 2 == 0;
          if (own_dice() % 20 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own_dice() % 300));
          if constexpr (at_once) {
            call_once<Float32, float, ranks, true>(world, multicast, rank, two, call, numel, places, symmetry);
          } else if (dice() % 2 == 0) {
            call_once<Float32, float, ranks, false>(world, mem, rank, two, call, numel, places, symmetry);
          } else {
            call_once<Int8, int8_t, ranks, false>(world, mem, rank, two, call, numel, places, symmetry);
          }
        }
        if (at_once && symmetry == Symmetry::kTogether) EXPECT(multicast.turn > 0);
      } catch (const std::exception& error) {
        errors[rank] = error.what();
        world.stop = true;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (int rank = 0; rank < num_ranks; ++rank) EXPECT_EQ(errors[rank], std::string());
}

constexpr uint32_t kMany = 1 << 12;  // slots: one epoch a call
constexpr uint32_t kFew = 200;       // many epochs a call

void test_staged() { run_calls<0>(3, kMany, 0, Symmetry::kNone, 600); }
void test_symmetric_2() { run_calls<2>(2, kMany, 0, Symmetry::kAll, 1500); }
void test_symmetric_4() { run_calls<4>(4, kMany, 0, Symmetry::kAll, 600); }
void test_mixed_2() { run_calls<2>(2, kMany, 0, Symmetry::kMixed, 1500); }
void test_mixed_3() { run_calls<0>(3, kMany, 0, Symmetry::kMixed, 800); }
void test_mixed_5() { run_calls<0>(5, kMany, 7, Symmetry::kMixed, 400); }
void test_mixed_8() { run_calls<8>(8, kMany, 7, Symmetry::kMixed, 200); }
void test_chunks_2() { run_calls<2>(2, kFew, 0, Symmetry::kMixed, 800); }
void test_chunks_4() { run_calls<4>(4, kFew, 1, Symmetry::kMixed, 400); }
void test_chunks_symmetric() { run_calls<0>(3, kFew, 1, Symmetry::kAll, 400); }
void test_wrap_32() { run_calls<2>(2, kFew, (uint64_t{1} << 32) - 9, Symmetry::kMixed, 200); }
void test_wrap_63() { run_calls<0>(3, kFew, (uint64_t{1} << 63) - 9, Symmetry::kMixed, 200); }
void test_at_once() { run_calls<0, true>(3, kMany, 0, Symmetry::kTogether, 800); }
void test_at_once_chunks() { run_calls<0, true>(4, kFew, 0, Symmetry::kTogether, 400); }
void test_at_once_or_not() { run_calls<0, true>(2, kMany, 0, Symmetry::kMixed, 800); }
void test_one_rank() { run_calls<0>(1, kFew, 0, Symmetry::kMixed, 100); }

// A rank that never calls: the others stop, and what they would have returned is poisoned, not half a sum.
void test_missing_rank() {
  for (const bool two : {false, true}) {
    World world(2, kMany, 0);
    world.stop = false;
    std::vector<float> x(1000, 1.0f);
    std::thread stopper([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      world.stop = true;
    });
    Wait wait(world.stop);
    Memory mem{&wait};
    const Scratch scratch = world.scratch(0);
    const Message message = make_message(x.data(), x.data(), 4000, 4, sizeof(Unit), true, true);
    const Plan plan = make_plan((4000 + sizeof(Unit) - 1) / sizeof(Unit), two ? 2 : 1, 1, kMany / 3);
    const Symmetric symmetric{world.pool_offset, 0, 0};
    SoloWithBoard group;
    if (two) {
      two_shot_pull<Float32, 2>(mem, group, scratch, symmetric, message, plan, SumOp{});
    } else {
      one_shot_pull<Float32, 2>(mem, group, scratch, symmetric, message, plan, SumOp{});
    }
    stopper.join();
    for (const float v : x) EXPECT(v != v);
    EXPECT_EQ(int(scratch.record(0)->buffer() == Record::kFailed), 1);
  }
}

constexpr Test kTests[] = {
    TEST(staged),   TEST(symmetric_2),  TEST(symmetric_4), TEST(mixed_2),        TEST(mixed_3),
    TEST(mixed_5),  TEST(mixed_8),      TEST(chunks_2),    TEST(chunks_4),       TEST(chunks_symmetric),
    TEST(wrap_32),  TEST(wrap_63),      TEST(at_once),     TEST(at_once_chunks), TEST(at_once_or_not),
    TEST(one_rank), TEST(missing_rank),
};

}  // namespace

int main(int argc, char** argv) { return run_main(kTests, argc, argv, false); }
