// Ranks as threads over ordinary memory in which 128-byte lines are added and read as one, as LL128 needs it: a lock
// per line stands for the L2. The order in which ranks add to a line can be forced.
#pragma once

#include <cmath>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "llcoll/group.h"
#include "llcoll/host_wait.h"
#include "llcoll/two_shot_ll128.h"
#include "ranks.h"
#include "sim/add_words.h"

namespace {

struct Lines {
  static constexpr size_t kLocks = 64;
  std::mutex locks[kLocks];
  std::mutex& lock_of(const void* line) { return locks[reinterpret_cast<uintptr_t>(line) / 128 % kLocks]; }
  // Forced order: the k-th addition to any line is rank order[k]'s. Empty: as it comes.
  std::vector<int> order;
  std::map<const void*, size_t> turns;  // under its line's lock, and this one
  std::mutex turns_lock;
};

struct LineMemory : HostMemory {
  Lines* lines;
  int rank;
  int num_ranks;

  template <LineAdd add, int n>
  void add_parts(LinePart* line, uint32_t first, const LinePart (&parts)[n]) const {
    static_assert(n == kLineParts);
    std::unique_lock<std::mutex> turn;  // held until the addition is done: the next in order must not overtake it
    if (!lines->order.empty()) turn = await_turn(line);
    const std::lock_guard lock(lines->lock_of(line));
    for (int p = 0; p < n; ++p) {
      for (int w = 0; w < 4; ++w) {
        uint32_t& word = line[first + p].words[w];
        word = add_words<add>(word, parts[p].words[w]);
      }
    }
  }
  template <int n>
  void load_parts(const LinePart* line, uint32_t first, LinePart (&parts)[n]) const {
    const std::lock_guard lock(lines->lock_of(line));
    for (int p = 0; p < n; ++p) parts[p] = line[first + p];
  }
  int find_idle_peer() const { return (rank + 1) % num_ranks; }

 private:
  std::unique_lock<std::mutex> await_turn(const LinePart* line) const {
    for (;;) {
      std::unique_lock lock(lines->turns_lock);
      size_t& turn = lines->turns[line];
      if (lines->order[turn % lines->order.size()] == rank) {
        ++turn;
        return lock;
      }
      sched_yield();
    }
  }
};

// One LL128 scratch per rank, one channel each.
struct LineWorld {
  int num_ranks;
  ScratchShape shape{};
  static constexpr size_t kLine = 128;
  std::vector<std::vector<char>> memory;
  std::vector<DeviceControl> controls;
  std::vector<FailureRecord> records;
  Lines lines;
  double timeout_s = 20;

  LineWorld(int n, uint32_t slots)
      : LineWorld(n, make_shape(slots, 1, Ll128<LineMemory>::kBuffers, sizeof(LinePart), 0, n)) {}
  // Empty as LL128 wants it: zero up to the boundary, the sentinel above. Other protocols' scratch: `fill` everywhere.
  LineWorld(int n, const ScratchShape& scratch_shape, int fill = -1)
      : num_ranks(n), shape(scratch_shape), controls(n), records(n) {
    const uint64_t part = uint64_t{shape.slots_per_channel} * shape.slot_bytes;
    const uint64_t boundary = uint64_t{line_slots_of(shape)} * sizeof(LinePart);
    for (int rank = 0; rank < n; ++rank) {
      memory.emplace_back(shape.bytes() + 2 * kLine);
      char* slots = scratch_of(rank);
      for (uint64_t at = 0; at < shape.slots_bytes(); at += part) {
        std::memset(slots + at, fill < 0 ? 0 : fill, part);
        if (fill < 0) std::memset(slots + at + boundary, 0xFF, part - boundary);
      }
    }
  }
  char* scratch_of(int rank) {
    const auto at = reinterpret_cast<uintptr_t>(memory[rank].data());
    return reinterpret_cast<char*>((at + kLine - 1) / kLine * kLine);
  }
  DeviceWait wait_of(int rank) {
    DeviceWait wait{};
    for (int r = 0; r < num_ranks; ++r) wait.controls[r] = &controls[r];
    wait.own_abort = &controls[rank].aborted;
    wait.record = &records[rank];
    wait.timeout_ns = static_cast<uint64_t>(timeout_s * 1e9);
    wait.rank = rank;
    wait.num_ranks = num_ranks;
    return wait;
  }
  Scratch scratch(int rank) {
    Scratch result{};
    result.shape = shape;
    result.rank = rank;
    for (int r = 0; r < num_ranks; ++r) result.memory[r] = scratch_of(r);
    find_records(result);
    return result;
  }

  // body(rank) on a thread each; their results.
  template <class Body>
  std::vector<std::string> run(Body&& body) {
    std::vector<std::string> results(num_ranks);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < num_ranks; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          results[rank] = body(rank);
        } catch (const std::exception& error) {
          results[rank] = error.what();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    return results;
  }
};

}  // namespace
