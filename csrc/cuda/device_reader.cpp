#include "cuda/device_reader.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "cuda/cuda_check.h"

namespace llcoll {
namespace {

constexpr auto kPatience = std::chrono::seconds(1);

// This thread's calls neither end nor disturb a capture that another thread is making.
class RelaxedCapture {
 public:
  RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace

DeviceReader::DeviceReader(int device, const DeviceControl* control, const Record* const (&records)[kNumProtocols])
    : device_(device), control_(control) {
  std::copy(std::begin(records), std::end(records), records_);
  check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
  const cudaError_t error = cudaHostAlloc(reinterpret_cast<void**>(&pinned_), sizeof(View), cudaHostAllocDefault);
  if (error != cudaSuccess) cudaStreamDestroy(stream_);
  check_cuda(error, "cudaHostAlloc");
}

DeviceReader::~DeviceReader() {
  cudaStreamDestroy(stream_);
  cudaFreeHost(pinned_);
}

bool DeviceReader::try_read(View& view) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const RelaxedCapture relaxed;
  int saved = device_;
  bool fine = cudaGetDevice(&saved) == cudaSuccess && (saved == device_ || cudaSetDevice(device_) == cudaSuccess);
  const auto copy = [&](void* to, const void* from, size_t bytes) {
    fine = fine && cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_) == cudaSuccess;
  };
  copy(&pinned_->control, control_, sizeof(DeviceControl));
  for (int p = 0; p < kNumProtocols; ++p) copy(&pinned_->records[p], records_[p], sizeof(Record));
  const auto limit = std::chrono::steady_clock::now() + kPatience;
  cudaError_t state = fine ? cudaErrorNotReady : cudaErrorUnknown;
  while (state == cudaErrorNotReady && std::chrono::steady_clock::now() < limit) {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
    state = cudaStreamQuery(stream_);
  }
  cudaGetLastError();  // not sticky ones: the thread's next call must not report them
  if (saved != device_) cudaSetDevice(saved);
  if (state != cudaSuccess) return false;
  view = *pinned_;
  return true;
}

}  // namespace llcoll
