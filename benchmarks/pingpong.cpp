// One-way latency of a cache line between two CPUs. usage: pingpong CPU_A CPU_B
// Each line on stdin holds a number of round trips; the answer is one line: nanoseconds one way (median of 5 batches).
// Nothing spins between requests, so the process can stay alive beside a benchmark.
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <thread>

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kNumBatches = 5;
constexpr uint64_t kPollsPerCheck = 1u << 20;
// A peer that loses its CPU for longer than this ends the measurement instead of hanging it.
constexpr auto kLimit = std::chrono::seconds(5);

struct alignas(128) Line {
  std::atomic<uint64_t> value{0};
};

bool pin(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  return pthread_setaffinity_np(pthread_self(), sizeof set, &set) == 0;
}

bool wait_for(const Line& line, uint64_t expected, Clock::time_point deadline) {
  for (uint64_t num_polls = 1; line.value.load(std::memory_order_acquire) != expected; ++num_polls) {
    if (num_polls % kPollsPerCheck == 0 && Clock::now() > deadline) return false;
  }
  return true;
}

double measure(int cpu_a, int cpu_b, uint64_t num_trips) {
  const auto deadline = Clock::now() + kLimit;
  Line ping;
  Line pong;
  std::atomic<bool> ok{true};
  std::thread echo([&] {
    if (!pin(cpu_b)) ok = false;
    for (uint64_t trip = 1; trip <= kNumBatches * num_trips; ++trip) {
      if (!wait_for(ping, trip, deadline)) break;
      pong.value.store(trip, std::memory_order_release);
    }
  });
  std::array<double, kNumBatches> one_way_ns{};
  if (!pin(cpu_a)) ok = false;
  uint64_t trip = 0;
  for (double& result : one_way_ns) {
    const auto start = Clock::now();
    for (uint64_t i = 0; i < num_trips && ok; ++i) {
      ping.value.store(++trip, std::memory_order_release);
      if (!wait_for(pong, trip, deadline)) ok = false;
    }
    const std::chrono::duration<double, std::nano> took = Clock::now() - start;
    result = took.count() / (2.0 * static_cast<double>(num_trips));
  }
  echo.join();
  std::sort(one_way_ns.begin(), one_way_ns.end());
  return ok ? one_way_ns[kNumBatches / 2] : -1.0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: pingpong CPU_A CPU_B\n";
    return 2;
  }
  const int cpu_a = std::atoi(argv[1]);
  const int cpu_b = std::atoi(argv[2]);
  uint64_t num_trips = 0;
  while (std::cin >> num_trips) std::cout << measure(cpu_a, cpu_b, std::max<uint64_t>(num_trips, 1)) << std::endl;
  return 0;
}
