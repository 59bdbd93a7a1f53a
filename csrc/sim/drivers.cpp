// The two drivers: random schedules, and every schedule.
#include <time.h>

#include <chrono>
#include <unordered_set>

#include "sim/world.h"

namespace llcoll::sim {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }
double cpu_seconds() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

}  // namespace

// Each seed draws its own temper first: how often loads are stale, stores late, and who lags.
Outcome World::run_random_schedule(uint64_t seed, std::vector<std::string>* trace) {
  random_ = Random(seed);
  static constexpr uint32_t kOdds[] = {0, 2, 2, 5, 12};
  stale_odds_ = kOdds[random_.below(5)];
  late_odds_ = kOdds[random_.below(5)];
  static constexpr uint32_t kLags[] = {0, 4, 16, 64, 256};
  lag_odds_ = kLags[random_.below(5)];
  slow_ranks_ = random_.one_in(2) ? 1u << random_.below(static_cast<uint32_t>(program_.ranks)) : 0;
  slow_threads_ = random_.one_in(3) ? random_.next() & random_.next() : 0;
  timeout_odds_ = random_.one_in(2) ? 8 : 40;
  begin(trace);
  advance();
  outcome_.steps = steps_;
  return outcome_;
}

RandomReport run_random(const Program& program, uint64_t first_seed, uint64_t schedules, double max_seconds) {
  RandomReport report;
  World world(program);
  const Clock::time_point start = Clock::now();
  const double cpu_start = cpu_seconds();
  for (uint64_t i = 0; i < schedules; ++i) {
    const Outcome outcome = world.run_random_schedule(first_seed + i);
    ++report.schedules;
    report.steps += outcome.steps;
    report.failed_calls += outcome.failed_calls;
    if (outcome.verdict != Verdict::kRight) {
      report.bad = outcome;
      report.bad_seed = first_seed + i;
      break;
    }
    if (max_seconds > 0 && i % 256 == 255 && seconds_since(start) > max_seconds) break;
  }
  report.seconds = cpu_seconds() - cpu_start;
  return report;
}

std::vector<std::string> trace_of(const Program& program, uint64_t seed) {
  std::vector<std::string> trace;
  World world(program);
  trace.push_back(world.run_random_schedule(seed, &trace).text);
  return trace;
}

// Depth first over all choices. A state seen before (by its 64-bit hash) is not entered again; the chance that a new
// state is taken for an old one is below states^2 / 2^65.
ExploreReport explore(const Program& program, uint64_t max_states, double max_seconds) {
  struct Node {
    std::vector<char> state;
    uint32_t choices;
    uint32_t next;
  };
  ExploreReport report;
  World world(program);
  world.explore_mode();
  const Clock::time_point start = Clock::now();
  const double cpu_start = cpu_seconds();
  std::unordered_set<uint64_t> seen;
  std::vector<Node> path;
  size_t depth = 0;
  const auto enter = [&](uint32_t choices) {
    if (choices == 0) {
      if (world.pruned()) return true;
      ++report.ends;
      report.bad = world.outcome();
      return report.bad.verdict == Verdict::kRight;
    }
    if (!seen.insert(world.hash()).second) return true;
    if (depth == path.size()) path.emplace_back();
    world.save(path[depth].state);
    path[depth].choices = choices;
    path[depth].next = 0;
    ++depth;
    if (depth > report.depth) report.depth = depth;
    return true;
  };
  world.begin();
  bool good = enter(world.advance());
  while (good && depth > 0) {
    Node& node = path[depth - 1];
    if (node.next == node.choices) {
      --depth;
      continue;
    }
    if (seen.size() >= max_states ||
        (max_seconds > 0 && report.edges % 1024 == 0 && seconds_since(start) > max_seconds)) {
      break;
    }
    world.load_state(node.state);
    world.take(node.next++);
    ++report.edges;
    good = enter(world.advance());
  }
  report.states = seen.size();
  report.complete = good && depth == 0;
  report.seconds = cpu_seconds() - cpu_start;
  if (good) return report;
  // The way to the bad end, once more and aloud.
  std::vector<uint32_t> choices;
  for (size_t i = 0; i < depth; ++i) choices.push_back(path[i].next - 1);
  world.begin(&report.trace);
  world.advance();
  for (const uint32_t choice : choices) {
    world.take(choice);
    if (world.advance() == 0) break;
  }
  return report;
}

std::vector<std::string> kernel_names() {
  std::vector<std::string> names;
  for (const KernelRow& row : kernel_rows()) {
    if (names.empty() || names.back() != row.name) names.push_back(row.name);
  }
  return names;
}
bool has_kernel(const std::string& name, DType dtype, bool once, int ranks) {
  return find_row(name, dtype, once, ranks) != nullptr;
}
std::vector<std::string> mutant_names() { return mutant_table(); }

}  // namespace llcoll::sim
