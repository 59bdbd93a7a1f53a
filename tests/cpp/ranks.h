// Harness of the shared-memory tests: forked ranks, with a bootstrap over anonymous shared memory.
#pragma once

#include <dirent.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "check.h"
#include "cpu/rendezvous.h"
#include "cpu/shm.h"

namespace {

using namespace llcoll;
using Clock = std::chrono::steady_clock;

#define EXPECT(condition)                                                                               \
  do {                                                                                                  \
    if (!(condition)) throw std::logic_error(concat(__FILE__, ":", __LINE__, " expected " #condition)); \
  } while (false)

#define EXPECT_EQ(left, right)                                                                                         \
  do {                                                                                                                 \
    const auto left_value = (left);                                                                                    \
    const auto right_value = (right);                                                                                  \
    if (!(left_value == right_value)) {                                                                                \
      throw std::logic_error(concat(__FILE__, ":", __LINE__, " expected " #left " == " #right "; got\n  ", left_value, \
                                    "\nand\n  ", right_value));                                                        \
    }                                                                                                                  \
  } while (false)

#define EXPECT_IN(part, text)                                                                            \
  do {                                                                                                   \
    const std::string text_value = (text);                                                               \
    if (text_value.find(part) == std::string::npos) {                                                    \
      throw std::logic_error(concat(__FILE__, ":", __LINE__, " no '", part, "' in '", text_value, "'")); \
    }                                                                                                    \
  } while (false)

template <class Fn>
inline std::string error_of(Fn fn) {
  try {
    fn();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "no error";
}

std::set<std::string> list_dir(const char* path) {
  std::set<std::string> names;
  DIR* dir = opendir(path);
  if (!dir) return names;
  while (const dirent* entry = readdir(dir)) names.insert(entry->d_name);
  closedir(dir);
  return names;
}

inline size_t count_fds() { return list_dir("/proc/self/fd").size(); }

inline size_t count_mappings() {
  std::ifstream maps("/proc/self/maps");
  std::string line;
  size_t count = 0;
  while (std::getline(maps, line)) count += line.find("memfd:llcoll") != std::string::npos;
  return count;
}

constexpr int kMaxRounds = 8;
constexpr size_t kSlotBytes = 4096;

// The bootstrap: one slot per round and rank, in memory that forked ranks share.
struct Board {
  struct Slot {
    std::atomic<int> bytes_plus_one{0};
    char bytes[kSlotBytes];
  };
  Slot slots[kMaxRounds][kMaxWorldSize];
  Slot results[kMaxWorldSize];
};

void put(Board::Slot& slot, const std::string& bytes) {
  const size_t count = bytes.copy(slot.bytes, kSlotBytes);
  slot.bytes_plus_one.store(static_cast<int>(count) + 1, std::memory_order_release);
}

std::string get(const Board::Slot& slot) {
  const int count = slot.bytes_plus_one.load(std::memory_order_acquire);
  return count > 0 ? std::string(slot.bytes, static_cast<size_t>(count) - 1) : "";
}

struct Rank {
  Board* board;
  int rank;
  int world_size;
  double limit_s = 20;
  int round = 0;

  std::vector<std::string> all_gather(const std::string& own) {
    EXPECT(round < kMaxRounds);
    auto& slots = board->slots[round++];
    put(slots[rank], own);
    const auto deadline = Clock::now() + std::chrono::duration<double>(limit_s);
    std::vector<std::string> all;
    for (int peer = 0; peer < world_size; ++peer) {
      while (slots[peer].bytes_plus_one.load(std::memory_order_acquire) == 0) {
        if (Clock::now() > deadline) throw std::runtime_error(concat("bootstrap: no answer of rank ", peer));
        usleep(100);
      }
      all.push_back(get(slots[peer]));
    }
    return all;
  }

  AllGather bootstrap() {
    return [this](const std::string& own) { return all_gather(own); };
  }

  // As bootstrap(), but `act(call, answers)` may look at and change what call number 0, 1, ... gave.
  AllGather bootstrap(std::function<void(int, std::vector<std::string>&)> act) {
    return [this, act](const std::string& own) {
      const int call = round;
      auto all = all_gather(own);
      act(call, all);
      return all;
    };
  }

  void barrier() { all_gather("barrier"); }
};

struct BoardOwner {
  BoardOwner() {
    void* memory = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    EXPECT(memory != MAP_FAILED);
    board = new (memory) Board;
  }
  ~BoardOwner() { munmap(board, sizeof(Board)); }
  Board* board;
};

// What each rank's body returned, or "error: " and what it threw; "" for a rank that was killed. A rank that lasts
// longer than limit_s is killed and fails the test.
inline std::vector<std::string> run_ranks(int world_size, const std::function<std::string(Rank&)>& body,
                                          int limit_s = 60) {
  BoardOwner owner;
  fflush(nullptr);
  std::vector<pid_t> children;
  for (int rank = 0; rank < world_size; ++rank) {
    const pid_t child = fork();
    EXPECT(child >= 0);
    if (child == 0) {
      Rank self{owner.board, rank, world_size};
      std::string result;
      try {
        result = body(self);
      } catch (const std::exception& error) {
        result = concat("error: ", error.what());
      }
      put(owner.board->results[rank], result);
      _exit(0);
    }
    children.push_back(child);
  }
  const auto deadline = Clock::now() + std::chrono::seconds(limit_s);
  bool is_late = false;
  for (const pid_t child : children) {
    while (waitpid(child, nullptr, WNOHANG) == 0) {
      if (Clock::now() > deadline) {
        is_late = true;
        kill(child, SIGKILL);
      }
      usleep(1000);
    }
  }
  EXPECT(!is_late);
  std::vector<std::string> results;
  for (int rank = 0; rank < world_size; ++rank) results.push_back(get(owner.board->results[rank]));
  return results;
}

inline void expect_all(const std::vector<std::string>& results, const std::string& wanted) {
  for (const std::string& result : results) EXPECT_EQ(result, wanted);
}

// All ranks failed, with one text, which is returned.
inline std::string expect_same_error(const std::vector<std::string>& results) {
  expect_all(results, results[0]);
  EXPECT_EQ(results[0].substr(0, 7), std::string("error: "));
  return results[0].substr(7);
}

struct Test {
  const char* name;
  void (*run)();
};

#define TEST(name) \
  { #name, test_##name }

// Usage: PROGRAM NAME runs one test, --list prints the names. Exit status 0: passed.
template <size_t num_tests>
int run_main(const Test (&tests)[num_tests], int argc, char** argv, bool leaves_no_names = true) {
  const std::string wanted = argc == 2 ? argv[1] : "";
  for (const Test& test : tests) {
    if (wanted == "--list") puts(test.name);
    if (wanted != test.name) continue;
    const auto named = list_dir("/dev/shm");
    try {
      test.run();
      if (leaves_no_names) EXPECT_EQ(list_dir("/dev/shm").size(), named.size());
    } catch (const std::exception& error) {
      fprintf(stderr, "%s: %s\n", test.name, error.what());
      return 1;
    }
    return 0;
  }
  return wanted == "--list" ? 0 : 2;
}

}  // namespace
