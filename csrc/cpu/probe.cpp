#include "cpu/probe.h"

#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "check.h"

namespace llcoll {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kPollsPerCheck = 1u << 20;
constexpr auto kLimit = std::chrono::seconds(5);

// Adjacent lines are fetched in pairs: two of them apart, or one thread's store would take the other's line along.
struct alignas(128) Line {
  std::atomic<uint64_t> value{0};
};

bool pin(int cpu) {
  if (cpu < 0 || cpu >= CPU_SETSIZE) return false;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  return pthread_setaffinity_np(pthread_self(), sizeof(set), &set) == 0;
}

class Affinity {
 public:
  Affinity() { known_ = pthread_getaffinity_np(pthread_self(), sizeof(saved_), &saved_) == 0; }
  ~Affinity() {
    if (known_) pthread_setaffinity_np(pthread_self(), sizeof(saved_), &saved_);
  }
  Affinity(const Affinity&) = delete;
  Affinity& operator=(const Affinity&) = delete;

 private:
  cpu_set_t saved_{};
  bool known_ = false;
};

// Acquire: pairs with the release store of the other thread, like the flag behind a chunk.
bool wait_for(const Line& line, uint64_t wanted, Clock::time_point deadline) {
  for (uint64_t polls = 1; line.value.load(std::memory_order_acquire) != wanted; ++polls) {
    if (polls % kPollsPerCheck == 0 && Clock::now() > deadline) return false;
  }
  return true;
}

}  // namespace

std::vector<double> ping_pong_ns(int cpu_a, int cpu_b, uint64_t num_trips, int num_batches) {
  check_that(num_trips > 0 && num_batches > 0, "ping-pong: ", num_trips, " trips in ", num_batches, " batches");
  const Affinity restored;
  const auto deadline = Clock::now() + kLimit;
  const uint64_t all_trips = num_trips * static_cast<uint64_t>(num_batches);
  Line ping, pong;
  std::atomic<bool> pinned{true}, late{false};
  std::thread echo([&] {
    if (!pin(cpu_b)) pinned = false;
    for (uint64_t trip = 1; trip <= all_trips && !late; ++trip) {
      if (!wait_for(ping, trip, deadline)) late = true;
      pong.value.store(trip, std::memory_order_release);
    }
  });
  if (!pin(cpu_a)) pinned = false;
  std::vector<double> result;
  uint64_t trip = 0;
  for (int batch = 0; batch < num_batches && !late; ++batch) {
    const auto start = Clock::now();
    for (uint64_t i = 0; i < num_trips && !late; ++i) {
      ping.value.store(++trip, std::memory_order_release);
      if (!wait_for(pong, trip, deadline)) late = true;
    }
    const std::chrono::duration<double, std::nano> took = Clock::now() - start;
    result.push_back(took.count() / (2.0 * static_cast<double>(num_trips)));
  }
  echo.join();
  check_that(pinned, "ping-pong: cannot run on both of CPUs ", cpu_a, " and ", cpu_b);
  check_that(!late, "ping-pong: no answer between CPUs ", cpu_a, " and ", cpu_b, " within 5 s");
  return result;
}

}  // namespace llcoll
