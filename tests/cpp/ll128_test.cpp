// Two-shot LL128 on the CPU, where a lock per line stands for the L2: results, flags, bounds, order, failures.
#include <cmath>
#include <limits>
#include <random>

#include "line_world.h"

namespace {

template <class Type>
uint32_t bits_of(double value) {
  return Type::template pack<uint32_t>(static_cast<float>(value), 0);
}
template <class Type>
float value_of(uint32_t bits) {
  return Type::template unpack<uint32_t>(bits, 0);
}
template <class Type>
constexpr size_t kElementBytes = 4 / Type::kPerWord;

// A message of elements given by their bits.
template <class Type>
struct Elements {
  std::vector<unsigned char> bytes;
  explicit Elements(size_t count) : bytes(count * kElementBytes<Type> + 64) {}
  void set(size_t i, uint32_t bits) { std::memcpy(&bytes[i * kElementBytes<Type>], &bits, kElementBytes<Type>); }
  uint32_t get(size_t i) const {
    uint32_t bits = 0;
    std::memcpy(&bits, &bytes[i * kElementBytes<Type>], kElementBytes<Type>);
    return bits;
  }
};

// One call as a launch of `num_channels` channels, run one after the other by this thread.
template <class Format, int ranks = 0>
void all_reduce(LineWorld& world, int rank, Elements<typename Format::Element>& data, size_t count, uint32_t lines,
                HostWait& wait) {
  using Type = typename Format::Element;
  using Group = LineGroup<Solo, 4>;
  const Tile tile(lines, Format::kPerLine);
  constexpr uint32_t kUnitBytes = sizeof(typename Format::Unit);
  const uint64_t num_bytes = count * kElementBytes<Type>;
  uint32_t max_chunk = 0;
  while (fits_lines(world.shape, max_chunk + 8, tile, kUnitBytes)) max_chunk += 8;
  EXPECT(max_chunk > 0);
  const Plan plan = make_plan((num_bytes + kUnitBytes - 1) / kUnitBytes, world.num_ranks, 1, max_chunk);
  const Message message =
      make_message(data.bytes.data(), data.bytes.data(), num_bytes, kElementBytes<Type>, kUnitBytes, true, true);
  LineMemory mem{{&wait}, &world.lines, rank, world.num_ranks};
  uint32_t displaced[Group::kDisplaced];
  const Group group(Solo{}, lines, line_slots_of(world.shape), displaced);
  two_shot_ll128<Format, ranks>(mem, group, world.scratch(rank), message, plan);
}

// Small integers: every order of adding them is exact. Random sizes, so that chunks, tiles and tails come up.
template <class Format>
void sums(int num_ranks, uint32_t lines, uint32_t slots, uint32_t max_count, int num_calls) {
  using Type = typename Format::Element;
  LineWorld world(num_ranks, slots);
  auto term = [](int rank, int call, size_t i) { return static_cast<int>((i * 7 + rank * 5 + call) % 13) - 6; };
  const auto body = [&](int rank) -> std::string {
    const DeviceWait limits = world.wait_of(rank);
    LlHostWait wait(limits);
    std::minstd_rand random(lines * 31 + slots);
    for (int call = 0; call < num_calls; ++call) {
      const size_t count = random() % max_count + 1;
      Elements<Type> data(count);
      for (size_t i = 0; i < count; ++i) data.set(i, bits_of<Type>(term(rank, call, i)));
      all_reduce<Format>(world, rank, data, count, lines, wait);
      if (wait.aborted()) return concat("call ", call, ": lost");
      for (size_t i = 0; i < count; ++i) {
        int want = 0;
        for (int r = 0; r < num_ranks; ++r) want += term(r, call, i);
        if (value_of<Type>(data.get(i)) != static_cast<float>(want)) {
          return concat("call ", call, " of ", count, " element ", i, ": ", value_of<Type>(data.get(i)), " not ", want);
        }
      }
    }
    return "ok";
  };
  expect_all(world.run(body), "ok");
}
template <class Format>
void all_shapes() {
  for (const uint32_t lines : {4u, 16u, 32u, 64u}) {
    sums<Format>(1, lines, 4000, 3000, 4);
    sums<Format>(2, lines, 4000, 20000, 6);
    sums<Format>(3, lines, 6400, 9000, 6);
  }
  sums<Format>(5, 8, 700, 4000, 10);
  sums<Format>(2, 64, 4000, 200, 10);
}
void test_float32() { all_shapes<LineFormat<Float32, false>>(); }
void test_float16() { all_shapes<LineFormat<Float16, false>>(); }
void test_bfloat16() { all_shapes<LineFormat<BFloat16, false>>(); }
void test_float16_wide() { all_shapes<LineFormat<Float16, true>>(); }
void test_bfloat16_wide() { all_shapes<LineFormat<BFloat16, true>>(); }

// Scratch that serves calls of different formats and tile sizes in turn: each is cleared by its own layout.
void test_mixed_formats() {
  LineWorld world(2, 4000);
  const auto body = [&](int rank) -> std::string {
    const DeviceWait limits = world.wait_of(rank);
    LlHostWait wait(limits);
    auto one = [&]<class Format>(Format, size_t count, uint32_t lines) {
      using Type = typename Format::Element;
      Elements<Type> data(count);
      for (size_t i = 0; i < count; ++i) data.set(i, bits_of<Type>(double(i % 50) + rank));
      all_reduce<Format>(world, rank, data, count, lines, wait);
      for (size_t i = 0; i < count; ++i) EXPECT_EQ(value_of<Type>(data.get(i)), static_cast<float>(i % 50 * 2 + 1));
    };
    for (int round = 0; round < 6; ++round) {
      one(LineFormat<Float32, false>{}, 9000, 64);
      one(LineFormat<BFloat16, true>{}, 40, 16);
      one(LineFormat<BFloat16, false>{}, 17000, 32);
      one(LineFormat<Float32, false>{}, 1, 16);
      one(LineFormat<Float16, true>{}, 6000, 64);
      one(LineFormat<Float16, false>{}, 3, 4);
    }
    return "ok";
  };
  expect_all(world.run(body), "ok");
}

// What could be taken for a count, or stick in it: in every position, the counted one too.
template <class Format>
void special_values() {
  using Type = typename Format::Element;
  constexpr int kRanks = 3;
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const float values[] = {nan, inf, -inf, 0.0f, -0.0f, 1.0f, 2.0f, 3.0f, -3.0f, 0.5f, 32.0f};
  constexpr size_t kNumValues = 11, kCount = 700;
  LineWorld world(kRanks, 4000);
  const auto body = [&](int rank) -> std::string {
    const DeviceWait limits = world.wait_of(rank);
    LlHostWait wait(limits);
    for (size_t shift = 0; shift < kNumValues; ++shift) {
      auto term = [&](int r, size_t i) { return values[(i / (r + 1) + shift + r) % kNumValues]; };
      Elements<Type> data(kCount);
      for (size_t i = 0; i < kCount; ++i) data.set(i, bits_of<Type>(term(rank, i)));
      all_reduce<Format>(world, rank, data, kCount, 16, wait);
      EXPECT(!wait.aborted());
      for (size_t i = 0; i < kCount; ++i) {
        const float want = term(0, i) + term(1, i) + term(2, i);
        const uint32_t got = data.get(i);
        if (std::isnan(want)) {
          EXPECT_EQ(got, Type::kNan & (kElementBytes<Type> == 4 ? ~0u : 0xFFFFu));
        } else {
          EXPECT_EQ(value_of<Type>(got), want);
        }
      }
    }
    return "ok";
  };
  expect_all(world.run(body), "ok");
}
void test_special_values() {
  special_values<LineFormat<Float32, false>>();
  special_values<LineFormat<BFloat16, false>>();
  special_values<LineFormat<Float16, false>>();
  special_values<LineFormat<BFloat16, true>>();
}

// |sum - exact| <= gamma_(N-1) * sum |x_i| with u of the accumulation format (16-bit wide: and one rounding at the
// end).
template <class Format>
void error_bound(double u, double final_u, int num_ranks) {
  using Type = typename Format::Element;
  constexpr size_t kCount = 3000;
  LineWorld world(num_ranks, 6400);
  auto term = [](int rank, size_t i) {  // of both signs and many sizes, above every subnormal
    std::minstd_rand random(static_cast<unsigned>(i * 64 + rank + 1));
    random.discard(3);
    const double mantissa = 1 + static_cast<double>(random() % 4096) / 4096;
    return value_of<Type>(bits_of<Type>(std::ldexp(random() % 2 ? mantissa : -mantissa, int(random() % 10) - 5)));
  };
  const auto body = [&](int rank) -> std::string {
    const DeviceWait limits = world.wait_of(rank);
    LlHostWait wait(limits);
    Elements<Type> data(kCount);
    for (size_t i = 0; i < kCount; ++i) data.set(i, bits_of<Type>(term(rank, i)));
    all_reduce<Format>(world, rank, data, kCount, 32, wait);
    const double gamma = (num_ranks - 1) * u / (1 - (num_ranks - 1) * u);
    for (size_t i = 0; i < kCount; ++i) {
      double exact = 0, magnitude = 0;
      for (int r = 0; r < num_ranks; ++r) exact += term(r, i), magnitude += std::fabs(term(r, i));
      const double got = value_of<Type>(data.get(i));
      EXPECT(std::fabs(got - exact) <= gamma * magnitude + final_u * (std::fabs(exact) + gamma * magnitude));
    }
    return "ok";
  };
  expect_all(world.run(body), "ok");
}
void test_error_bound() {
  for (const int n : {2, 4}) {
    error_bound<LineFormat<Float32, false>>(std::ldexp(1, -24), 0, n);
    error_bound<LineFormat<BFloat16, false>>(std::ldexp(1, -8), 0, n);
    error_bound<LineFormat<Float16, false>>(std::ldexp(1, -11), 0, n);
    error_bound<LineFormat<BFloat16, true>>(std::ldexp(1, -24), std::ldexp(1, -8), n);
  }
}

// The order of additions is the order of arrivals: where it is forced, so are the bits, and orders can differ in them.
void test_forced_order() {
  constexpr int kRanks = 3;
  constexpr size_t kCount = 600;
  auto term = [](int rank, size_t i) { return std::ldexp(1.0f + 0.37f * static_cast<float>(i % 9), 11 * rank - 11); };
  std::vector<std::vector<uint32_t>> results;
  for (const std::vector<int>& order : {std::vector<int>{0, 1, 2}, {2, 1, 0}, {1, 2, 0}}) {
    LineWorld world(kRanks, 4000);
    world.lines.order = order;
    std::vector<uint32_t> bits[kRanks];
    const auto body = [&](int rank) -> std::string {
      const DeviceWait limits = world.wait_of(rank);
      LlHostWait wait(limits);
      Elements<Float32> data(kCount);
      for (size_t i = 0; i < kCount; ++i) data.set(i, bits_as<uint32_t>(term(rank, i)));
      all_reduce<LineFormat<Float32, false>>(world, rank, data, kCount, 16, wait);
      for (size_t i = 0; i < kCount; ++i) {
        bits[rank].push_back(data.get(i));
        float want = 0;
        for (const int r : order) want += term(r, i);
        EXPECT_EQ(data.get(i), bits_as<uint32_t>(want));
      }
      return "ok";
    };
    expect_all(world.run(body), "ok");
    for (int rank = 1; rank < kRanks; ++rank) EXPECT(bits[rank] == bits[0]);  // one owner, one sum
    results.push_back(bits[0]);
  }
  EXPECT(results[0] != results[1]);
}

// A rank that does not come: the others end in bounded time with NaN everywhere, and so do later calls.
void test_missing_rank() {
  LineWorld world(3, 4000);
  world.timeout_s = 0.2;
  const auto body = [&](int rank) -> std::string {
    if (rank == 1) return "absent";
    const DeviceWait limits = world.wait_of(rank);
    LlHostWait wait(limits);
    for (int call = 0; call < 2; ++call) {
      Elements<Float32> data(1000);
      all_reduce<LineFormat<Float32, false>>(world, rank, data, 1000, 16, wait);
      for (size_t i = 0; i < 1000; ++i) EXPECT_EQ(data.get(i), Float32::kNan);
    }
    return wait.aborted() ? "ended" : "ok";
  };
  const auto results = world.run(body);
  EXPECT_EQ(results[0], std::string("ended"));
  EXPECT_EQ(results[2], std::string("ended"));
}

void test_tile() {
  // The paper's: 496 regular threads and 16 extra ones of 512 for float32, 504 and 8 for 16-bit types.
  EXPECT_EQ(Tile(64, LineFormat<Float32, false>::kPerLine).units(), 496u);
  EXPECT_EQ(Tile(64, LineFormat<BFloat16, false>::kPerLine).units(), 504u);
  EXPECT_EQ(Tile(64, LineFormat<BFloat16, true>::kPerLine).units(), 496u);
  for (uint32_t lines = 2; lines <= 64; ++lines) {
    for (const uint32_t per_line : {32u, 64u}) {
      const Tile tile(lines, per_line);
      EXPECT(tile.extra * (per_line - 1) >= tile.regular());
    }
  }
}

constexpr Test kTests[] = {
    TEST(float32),       TEST(float16),       TEST(bfloat16),       TEST(float16_wide),
    TEST(bfloat16_wide), TEST(mixed_formats), TEST(special_values), TEST(error_bound),
    TEST(forced_order),  TEST(missing_rank),  TEST(tile),
};

}  // namespace

int main(int argc, char** argv) { return run_main(kTests, argc, argv); }
