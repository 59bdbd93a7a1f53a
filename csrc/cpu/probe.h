// The CPU's speed of light: what a cache line takes from one core to another. For measurements only.
#pragma once

#include <cstdint>
#include <vector>

namespace llcoll {

// One-way latency of a cache line between two CPUs, ns, one figure a batch of `num_trips` round trips: two pinned
// threads of this process pass two lines to and fro. The caller's affinity is restored. Throws LlcollError where a CPU
// cannot be pinned to, or where a thread lost its CPU for 5 s.
std::vector<double> ping_pong_ns(int cpu_a, int cpu_b, uint64_t num_trips, int num_batches);

}  // namespace llcoll
