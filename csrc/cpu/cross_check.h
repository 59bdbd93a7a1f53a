// Debug mode (LLCOLL_DEBUG=1): before a call sends anything, every rank shows the others what it is about to do.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "communicator.h"
#include "cpu/cpu_wait.h"

namespace llcoll {

// What one rank is about to do; `text` is for people. One mailbox per parity of the call's number: a rank waits for
// every peer in each call, so it is never two calls ahead.
struct alignas(64) Mail {
  std::atomic<uint64_t> call;  // number of the call that this describes; written last (release)
  uint64_t numel;
  uint64_t epoch;
  int32_t dtype;
  int32_t op;
  int32_t algorithm;
  int32_t raised;  // 1: the rank raised an error instead of calling
  int32_t kind;
  int32_t root;
  uint64_t gives[kMaxRanks];  // elements for each rank; must be what that rank takes from this one
  uint64_t takes[kMaxRanks];
  char text[160];
};
static_assert(sizeof(Mail) % 64 == 0);
struct Mailbox {
  Mail mail[2];
};

class CrossCheck {
 public:
  CrossCheck(int rank, std::vector<Mailbox*> boxes, CpuWait& wait)
      : rank_(rank), boxes_(std::move(boxes)), wait_(wait) {}

  // Throws CollectiveMismatch, on every rank alike, where they differ or where one of them raised.
  void compare(const CollectiveCall& call, uint64_t epoch);
  // This rank raises `what`; the peers learn it in their compare(). Waits for them within the limit.
  void announce(const std::string& what);

 private:
  bool exchange(const Mail& own);

  int rank_;
  std::vector<Mailbox*> boxes_;
  CpuWait& wait_;
  uint64_t num_calls_ = 0;
};

}  // namespace llcoll
