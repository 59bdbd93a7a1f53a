// What the host finds out about a communicator's kernels besides what they tell it: for dumps, and by a watchdog thread
// for loops that only replay graphs and make no other host call.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "cuda/device_reader.h"
#include "cuda/watchdog.h"
#include "flight_recorder.h"

namespace llcoll {

class Monitor {
 public:
  // All memory is this rank's own. `check` throws what is pending; `note_abort` is called once a peer has aborted.
  Monitor(int rank, int device, const DeviceControl* control, const Record* const (&records)[kNumProtocols],
          std::function<void()> check, std::function<void()> note_abort);

  // Looks once a second, at the device every other time: a failure is logged (check() leaves its dump), a peer's abort
  // makes the next host call raise, a long wait is warned about. LLCOLL_WATCHDOG=0 leaves it out.
  void start();
  // Before whatever `check` needs goes.
  void stop() { watchdog_.reset(); }

  // Whom this rank's kernels are waiting for, -1: nobody, or the device does not answer.
  int awaited();
  // Tells done calls from enqueued ones. A launch has ended where the record of its protocol names it or a later one.
  // Behind a failure nobody can say which launches ran, and a graph's replay leaves an old id: such calls stay
  // enqueued.
  void complete(std::vector<CallRecord>& calls);

 private:
  using Clock = std::chrono::steady_clock;

  bool look();

  int rank_;
  DeviceReader reader_;
  std::function<void()> check_;
  std::function<void()> note_abort_;
  // The watchdog thread's own.
  double warn_after_s_;
  Clock::time_point next_read_{};
  Clock::time_point waiting_since_ = Clock::now();
  uint32_t last_beat_ = 0;
  bool has_warned_ = false;
  std::unique_ptr<Watchdog> watchdog_;
};

}  // namespace llcoll
