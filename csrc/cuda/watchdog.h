// A thread that looks at a communicator now and then, for loops that only replay graphs and make no other host call.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace llcoll {

class Watchdog {
 public:
  // Calls `look` every `period_s` seconds until it returns false or this goes. `look` must not throw.
  Watchdog(double period_s, std::function<bool()> look);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable stopped_;
  bool stop_ = false;
  std::thread thread_;  // last: it begins with all else in place
};

}  // namespace llcoll
