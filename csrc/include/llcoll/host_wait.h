// Bounded waits of an LLBuffer on the CPU: what HostMemory asks for, over the control block of the buffer itself.
// Kernels of llcoll's own use the communicator's, which also looks at signals and at processes that died.
#pragma once

#include <sched.h>

#include <chrono>

#include "llcoll/host_memory.h"
#include "llcoll/ll_memory.h"
#include "llcoll/wait.h"

namespace llcoll {

// One per process (its threads may share it), over the `wait` of make_ll_args.
class LlHostWait final : public HostWait {
 public:
  explicit LlHostWait(const DeviceWait& wait) : wait_(wait) {}

  bool wait_on(Patience& patience, int source, uint64_t epoch) override {
    if (aborted()) return false;
    const uint64_t now = now_ns();
    if (patience.start_ns == 0) patience.start_ns = now;
    const uint64_t waited = now - patience.start_ns;
    if (waited > kSpinNs) sched_yield();
    if (waited > kPublishAfterNs) {
      __atomic_store_n(&own().awaited, static_cast<uint32_t>(source + 1), __ATOMIC_RELAXED);
      patience.published = true;
    }
    // The grace lets every waiter publish, so that the chain ends at the one who is missing.
    if (wait_.timeout_ns == 0 || waited < wait_.timeout_ns + kGraceNs) return true;
    const int culprit = find_culprit(wait_.rank, source, wait_.num_ranks, [&](int rank) {
      return static_cast<int>(__atomic_load_n(&wait_.controls[rank]->awaited, __ATOMIC_RELAXED));
    });
    for (int rank = 0; rank < wait_.num_ranks; ++rank) {
      __atomic_store_n(&wait_.controls[rank]->aborted, static_cast<uint32_t>(culprit + 1), __ATOMIC_RELAXED);
    }
    tell(culprit, source, epoch);
    return false;
  }
  void stop_waiting() override { __atomic_store_n(&own().awaited, 0, __ATOMIC_RELAXED); }
  bool aborted() const override {
    const uint32_t word = __atomic_load_n(wait_.own_abort, __ATOMIC_RELAXED);
    if (word != 0) tell(static_cast<int>(word) - 1, wait_.rank, 0);
    return word != 0;
  }

 private:
  static constexpr uint64_t kSpinNs = 20'000;
  static constexpr uint64_t kPublishAfterNs = 1'000'000;
  static constexpr uint64_t kGraceNs = 200'000'000;

  static uint64_t now_ns() {
    return static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
            .count());
  }
  DeviceControl& own() const { return *wait_.controls[wait_.rank]; }
  // The first report stands; `valid` last, so that whoever sees it sees the rest.
  void tell(int culprit, int source, uint64_t epoch) const {
    FailureRecord& record = *wait_.record;
    if (__atomic_load_n(&record.valid, __ATOMIC_ACQUIRE) != 0) return;
    record.culprit = culprit;
    record.source = source;
    record.epoch = epoch;
    __atomic_store_n(&record.valid, 1, __ATOMIC_RELEASE);
  }

  const DeviceWait& wait_;
};

}  // namespace llcoll
