// The paper's table I on full chunks, counted by the memory policy: bytes that each rank stores into its peers' memory,
// scratch per iteration, and synchronisations (the longest chain of messages that wait for one another).
// Where ours differs (two-shot scratch: gathered results need room of their own, since outputs are ordinary memory) the
// expectation says so.
#include <algorithm>
#include <map>

#include "line_world.h"
#include "llcoll/sentinel.h"
#include "llcoll/two_shot.h"

namespace {

struct Counts {
  std::mutex mutex;
  std::map<const void*, int> depth_at;  // of the message that was stored there
};

// Each store and each load is one step under a lock, so a load that finds data finds its depth too.
struct CountingMemory : LineMemory {
  Counts* counts;
  const char* own_first;
  const char* own_end;
  uint64_t* sent_bytes;
  int* depth;

  bool is_own(const void* at) const { return at >= own_first && at < own_end; }
  void note_store(const void* at, uint64_t bytes) const {
    if (is_own(at)) return;
    *sent_bytes += bytes;
    counts->depth_at[at] = std::max(counts->depth_at[at], *depth + 1);
  }
  void note_load(const void* at) const {
    const auto found = counts->depth_at.find(at);
    if (found != counts->depth_at.end()) *depth = std::max(*depth, found->second);
  }

  void store_packet(Packet* at, Packet packet) const {
    const std::lock_guard lock(counts->mutex);
    LineMemory::store_packet(at, packet);
    note_store(at, sizeof(Packet));
  }
  Packet load_packet(const Packet* at) const {
    const std::lock_guard lock(counts->mutex);
    note_load(at);
    return LineMemory::load_packet(at);
  }
  template <class Unit>
  void store_unit(Unit* at, Unit value) const {
    const std::lock_guard lock(counts->mutex);
    LineMemory::store_unit(at, value);
    note_store(at, sizeof(Unit));
  }
  template <class Unit>
  Unit load_unit(const Unit* at) const {
    const std::lock_guard lock(counts->mutex);
    note_load(at);
    return LineMemory::load_unit(at);
  }
  template <LineAdd add, int n>
  void add_parts(LinePart* line, uint32_t first, const LinePart (&parts)[n]) const {
    const std::lock_guard lock(counts->mutex);
    LineMemory::add_parts<add>(line, first, parts);
    note_store(line, sizeof parts);
  }
  template <int n>
  void load_parts(const LinePart* line, uint32_t first, LinePart (&parts)[n]) const {
    const std::lock_guard lock(counts->mutex);
    note_load(line);
    LineMemory::load_parts(line, first, parts);
  }
};

struct Result {
  double sent = 0;     // bytes per rank, over M
  double scratch = 0;  // bytes per iteration, over M: one iteration takes the whole message
  int synchronisations = 0;
};

// `fill`: of empty slots. `run(mem, scratch, message, plan)` is one rank's call; every rank must come to the same
// counts.
template <class Run>
Result count(int num_ranks, const ScratchShape& shape, int fill, uint64_t num_bytes, uint32_t unit_bytes, bool two,
             uint64_t (*scratch_bytes)(uint32_t extent), Run&& run) {
  LineWorld world(num_ranks, shape, fill);
  Counts counts;
  std::vector<uint64_t> sent(num_ranks);
  std::vector<int> depth(num_ranks);
  std::vector<uint64_t> scratch(num_ranks);
  const auto body = [&](int rank) -> std::string {
    const DeviceWait limits = world.wait_of(rank);
    LlHostWait wait(limits);
    std::vector<float> data(num_bytes / 4 + 16, 1.0f);
    const Message message = make_message(data.data(), data.data(), num_bytes, 4, int(unit_bytes), true, true);
    const Plan plan = make_plan(num_bytes / unit_bytes, two ? num_ranks : 1, 1, 1u << 20);
    EXPECT_EQ(plan.num_chunks, 1u);
    const Scratch own = world.scratch(rank);
    const char* first = own.memory[rank];
    CountingMemory mem{
        {{&wait}, &world.lines, rank, num_ranks}, &counts, first, first + shape.bytes(), &sent[rank], &depth[rank]};
    run(mem, own, message, plan);
    for (size_t i = 0; i < num_bytes / 4; ++i) EXPECT_EQ(data[i], static_cast<float>(num_ranks));
    scratch[rank] = scratch_bytes(own.record(0)->extent);
    return "ok";
  };
  expect_all(world.run(body), "ok");
  for (int rank = 1; rank < num_ranks; ++rank) {
    EXPECT_EQ(sent[rank], sent[0]);
    EXPECT_EQ(depth[rank], depth[0]);
    EXPECT_EQ(scratch[rank], scratch[0]);
  }
  const auto m = static_cast<double>(num_bytes);
  return {static_cast<double>(sent[0]) / m, static_cast<double>(scratch[0]) / m, depth[0]};
}

constexpr uint64_t kMessage = 4 * 31 * 8 * 64 * 16;  // whole units, parts and tiles at 2 and 4 ranks

template <template <class> class Protocol, bool two>
Result push(int num_ranks) {
  using P = Protocol<CountingMemory>;
  constexpr uint32_t kUnit = sizeof(typename P::Unit);
  const uint32_t regions = push_regions(two ? 2 : 1, num_ranks);
  const uint64_t part = kMessage / kUnit / (two ? num_ranks : 1);
  const ScratchShape shape =
      make_shape(static_cast<uint32_t>(regions * stride_of(part)), 1, P::kBuffers, P::kSlotBytes, 0, num_ranks);
  return count(
      num_ranks, shape, P::kNeedsFence ? 0xFF : 0, kMessage, kUnit, two,
      [](uint32_t extent) { return uint64_t{extent} * P::kSlotBytes; },
      [](CountingMemory& mem, const Scratch& scratch, const Message& message, const Plan& plan) {
        if constexpr (two) {
          two_shot<Protocol, Float32, 0>(mem, Solo{}, scratch, message, plan, SumOp{});
        } else {
          one_shot<Protocol, Float32, 0>(mem, Solo{}, scratch, message, plan, SumOp{});
        }
      });
}

Result lines(int num_ranks) {
  using Format = LineFormat<Float32, false>;
  const uint32_t part = kMessage / 16 / num_ranks;
  const ScratchShape shape = make_shape(8 * part * 4, 1, 3, 16, 0, num_ranks);
  return count(
      num_ranks, shape, -1, kMessage, 16, true,
      [](uint32_t extent) { return uint64_t{extent >> 16} * 128 + (extent & 0xFFFF) * kStrideUnits * 16; },
      [](CountingMemory& mem, const Scratch& scratch, const Message& message, const Plan& plan) {
        using Group = LineGroup<Solo, 4>;
        uint32_t displaced[Group::kDisplaced];
        const Group group(Solo{}, kMaxTileLines, line_slots_of(scratch.shape), displaced);
        two_shot_ll128<Format, 0>(mem, group, scratch, message, plan);
      });
}

void expect_near(double got, double want, double tolerance = 1e-9) {
  if (std::fabs(got - want) > tolerance * want) throw std::logic_error(concat("expected ", want, ", got ", got));
}
void expect_row(const Result& got, double sent, double scratch, int synchronisations, double tolerance = 1e-9) {
  expect_near(got.sent, sent, tolerance);
  expect_near(got.scratch, scratch, tolerance);
  EXPECT_EQ(got.synchronisations, synchronisations);
}

void test_one_shot_ll() {
  for (const int n : {2, 4}) expect_row(push<Ll, false>(n), 2.0 * (n - 1), 2.0 * n, 1);
}
void test_one_shot_sentinel() {
  for (const int n : {2, 4}) expect_row(push<Sentinel, false>(n), n - 1.0, n, 1);
}
// The paper's scratch: 2 D. Ours: as much again for the gathered results.
void test_two_shot_ll() {
  for (const int n : {2, 4}) expect_row(push<Ll, true>(n), 4.0 * (n - 1) / n, 4.0, 2);
}
// The paper's: D.
void test_two_shot_sentinel() {
  for (const int n : {2, 4}) expect_row(push<Sentinel, true>(n), 2.0 * (n - 1) / n, 2.0, 2);
}
// The paper's: 2 (N - 1) M / N and D / N, with 64 lines for the elements of 62; ours gathers in D more.
void test_two_shot_ll128() {
  for (const int n : {2, 4}) {
    const double more = 64.0 / 62;
    expect_row(lines(n), (1 + more) * (n - 1) / n, more / n + 1, 2);
  }
}

constexpr Test kTests[] = {
    TEST(one_shot_ll), TEST(one_shot_sentinel), TEST(two_shot_ll), TEST(two_shot_sentinel), TEST(two_shot_ll128),
};

}  // namespace

int main(int argc, char** argv) { return run_main(kTests, argc, argv); }
