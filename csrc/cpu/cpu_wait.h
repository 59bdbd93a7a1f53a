// How a CPU rank waits: spins, yields, notices signals and aborts, warns, and at the limit names the culprit.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "check.h"
#include "communicator.h"
#include "llcoll/host_memory.h"

namespace llcoll {

// One per rank, at the start of its segment. Other ranks write `aborted`; `awaited` is the owner's.
struct alignas(64) Control {
  std::atomic<uint32_t> aborted;  // AbortWord; 0: none
  char padding[60];
  std::atomic<uint32_t> awaited;  // rank + 1 of whom the owner has been awaiting for long; 0: nobody
  std::atomic<uint32_t> beat;     // moves while the owner waits: a stopped or dead one leaves its `awaited` behind
};
static_assert(sizeof(Control) == 128);

// Why all waits ended, in one word, so that every rank names the same culprit.
struct AbortWord {
  ErrorKind kind;
  int reporter;
  int culprit;  // -1: nobody
  uint32_t pack() const {
    return 1u << 31 | static_cast<uint32_t>(kind) << 16 | static_cast<uint32_t>(reporter) << 8 |
           static_cast<uint32_t>(culprit + 1);
  }
  static AbortWord unpack(uint32_t word) {
    return {static_cast<ErrorKind>(word >> 16 & 0xFF), static_cast<int>(word >> 8 & 0xFF),
            static_cast<int>(word & 0xFF) - 1};
  }
};

// Seconds after which a wait is warned about: LLCOLL_WARN_AFTER, or 30.
double warn_after_from_environment();

class CpuWait final : public HostWait {
 public:
  CpuWait(const Options& options, std::vector<Control*> controls);

  bool wait_on(Patience& patience, int source, uint64_t epoch) override;
  void stop_waiting() override;
  bool aborted() const override { return controls_[rank_]->aborted.load(std::memory_order_acquire) != 0; }

  // Whom this rank has been awaiting for some time, -1: nobody.
  int awaited() const { return static_cast<int>(controls_[rank_]->awaited.load(std::memory_order_relaxed)) - 1; }

  // What is running, for warnings and reports.
  void begin(const char* what, const char* detail) {
    what_ = what;
    detail_ = detail;
  }
  // Tells every rank. The first word stays.
  void abort_all(AbortWord word);
  // Throws the error of a failed or aborted communicator; returns if there is none.
  void throw_if_failed();

 private:
  bool give_up(Patience& patience, int source, uint64_t epoch);

  int rank_;
  int world_size_;
  double timeout_s_;
  uint64_t sleep_after_ns_;
  double warn_after_s_;
  bool oversubscribed_;
  std::vector<Control*> controls_;
  const char* what_ = "";
  const char* detail_ = "";
  std::string failure_;
  uint64_t limit_seen_ns_ = 0;        // when this rank's grace time began
  std::vector<uint32_t> last_beats_;  // of all ranks, at that moment
};

}  // namespace llcoll
