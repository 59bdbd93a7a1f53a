#include "cuda/watchdog.h"

#include <chrono>
#include <utility>

namespace llcoll {

Watchdog::Watchdog(double period_s, std::function<bool()> look)
    : thread_([this, period_s, look = std::move(look)] {
        std::unique_lock<std::mutex> lock(mutex_);
        while (!stopped_.wait_for(lock, std::chrono::duration<double>(period_s), [&] { return stop_; })) {
          lock.unlock();
          if (!look()) return;
          lock.lock();
        }
      }) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  stopped_.notify_all();
  thread_.join();
}

}  // namespace llcoll
