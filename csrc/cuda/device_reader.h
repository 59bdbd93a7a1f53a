// Looks at what kernels have left on the device while others run or hang: for dumps and the watchdog.
#pragma once

#include <cuda_runtime.h>

#include <mutex>

#include "llcoll/device_wait.h"
#include "llcoll/layout.h"
#include "select.h"

namespace llcoll {

class DeviceReader {
 public:
  struct View {
    DeviceControl control;
    Record records[kNumProtocols];  // of channel 0, which takes part in every launch
  };

  // All addresses are this rank's own, on `device`, which must be current here.
  DeviceReader(int device, const DeviceControl* control, const Record* const (&records)[kNumProtocols]);
  ~DeviceReader();
  DeviceReader(const DeviceReader&) = delete;
  DeviceReader& operator=(const DeviceReader&) = delete;

  // By a stream of its own, so it waits for no kernel; from any thread, also while another one captures. False where
  // the device does not answer within a second, as after an error that its context does not survive.
  bool try_read(View& view);

 private:
  int device_;
  const DeviceControl* control_;
  const Record* records_[kNumProtocols];
  cudaStream_t stream_ = nullptr;
  View* pinned_ = nullptr;
  std::mutex mutex_;
};

}  // namespace llcoll
