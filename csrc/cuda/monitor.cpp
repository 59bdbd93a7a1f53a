#include "cuda/monitor.h"

#include <cstdio>
#include <exception>
#include <utility>

#include "cpu/cpu_wait.h"
#include "cuda/cuda_check.h"

namespace llcoll {
namespace {

constexpr double kLookEveryS = 1;
constexpr std::chrono::seconds kReadEvery{2};

}  // namespace

Monitor::Monitor(int rank, int device, const DeviceControl* control, const Record* const (&records)[kNumProtocols],
                 std::function<void()> check, std::function<void()> note_abort)
    : rank_(rank),
      reader_(device, control, records),
      check_(std::move(check)),
      note_abort_(std::move(note_abort)),
      warn_after_s_(warn_after_from_environment()) {}

void Monitor::start() {
  if (number_from_environment("LLCOLL_WATCHDOG", 1) == 0) return;
  watchdog_ = std::make_unique<Watchdog>(kLookEveryS, [this] { return look(); });
}

int Monitor::awaited() {
  DeviceReader::View view;
  return reader_.try_read(view) ? static_cast<int>(view.control.awaited) - 1 : -1;
}

void Monitor::complete(std::vector<CallRecord>& calls) {
  DeviceReader::View view;
  if (!reader_.try_read(view)) return;
  for (CallRecord& call : calls) {
    if (call.state != CallState::kEnqueued || call.algorithm == Algorithm::kTorch) continue;
    const Record& last = view.records[protocol_of(call.algorithm)];
    const uint32_t ahead = (last.launch() - static_cast<uint32_t>(call.position)) & Record::kLaunchMask;
    const bool has_failed = last.buffer() == Record::kFailed;
    if (!has_failed && ahead < FlightRecorder::kCapacity) call.state = CallState::kDone;
    if (has_failed && ahead == 0) call.state = CallState::kFailed;
  }
}

// False once there is nothing more to find out.
bool Monitor::look() {
  try {
    check_();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "llcoll: rank %d: %s\n", rank_, error.what());
    return false;
  }
  const Clock::time_point now = Clock::now();
  if (now < next_read_) return true;
  next_read_ = now + kReadEvery;
  DeviceReader::View view;
  if (!reader_.try_read(view)) return true;
  if (view.control.aborted == kUserAbort) note_abort_();
  const bool is_waiting = view.control.awaited != 0 && view.control.beat != last_beat_;
  last_beat_ = view.control.beat;
  if (!is_waiting) {
    waiting_since_ = now;
    has_warned_ = false;
    return true;
  }
  const double seconds = std::chrono::duration<double>(now - waiting_since_).count();
  if (!has_warned_ && seconds > warn_after_s_) {
    has_warned_ = true;
    std::fprintf(stderr, "llcoll: rank %d has waited %.0f s for rank %d on its GPU\n", rank_, seconds,
                 static_cast<int>(view.control.awaited) - 1);
  }
  return true;
}

}  // namespace llcoll
