#include "nccl/bootstrap.h"

#include <dlfcn.h>

#include <chrono>
#include <cstdint>
#include <thread>

#include "nccl/counters.h"
#include "nccl/real.h"

namespace llcoll::nccl {
namespace {

constexpr auto kLimit = std::chrono::seconds(300);

class HostBootstrap final : public Bootstrap {
 public:
  explicit HostBootstrap(Comm comm) : comm_(comm) {}

 protected:
  bool gather(const void* own, size_t bytes, void* all) override {
    return real().AllGather(own, all, bytes, kUint8, comm_, nullptr) == kSuccess;
  }

 private:
  Comm comm_;
};

// The few functions of CUDA's driver that copying needs, with its types.
using DevicePointer = unsigned long long;
using Context = void*;
constexpr int kNotReady = 600;          // CUDA_ERROR_NOT_READY
constexpr unsigned kNonBlocking = 1;    // CU_STREAM_NON_BLOCKING
constexpr int kCaptureModeRelaxed = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED

struct Driver {
  int (*device_get)(int* device, int ordinal);
  int (*retain)(Context* context, int device);
  int (*release)(int device);
  int (*get_current)(Context* context);
  int (*set_current)(Context context);
  int (*alloc)(DevicePointer* memory, size_t bytes);
  int (*free)(DevicePointer memory);
  int (*stream_create)(Stream* stream, unsigned flags);
  int (*stream_destroy)(Stream stream);
  int (*stream_query)(Stream stream);
  int (*to_device)(DevicePointer to, const void* from, size_t bytes, Stream stream);
  int (*to_host)(void* to, DevicePointer from, size_t bytes, Stream stream);
  int (*exchange_mode)(int* mode);
  bool is_complete;
};

Driver load_driver() {
  Driver d{};
  void* handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return d;
  d.is_complete = true;
  auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, name));
    d.is_complete = d.is_complete && function != nullptr;
  };
  find(d.device_get, "cuDeviceGet");
  find(d.retain, "cuDevicePrimaryCtxRetain");
  find(d.release, "cuDevicePrimaryCtxRelease_v2");
  find(d.get_current, "cuCtxGetCurrent");
  find(d.set_current, "cuCtxSetCurrent");
  find(d.alloc, "cuMemAlloc_v2");
  find(d.free, "cuMemFree_v2");
  find(d.stream_create, "cuStreamCreate");
  find(d.stream_destroy, "cuStreamDestroy_v2");
  find(d.stream_query, "cuStreamQuery");
  find(d.to_device, "cuMemcpyHtoDAsync_v2");
  find(d.to_host, "cuMemcpyDtoHAsync_v2");
  find(d.exchange_mode, "cuThreadExchangeStreamCaptureMode");
  return d;
}

const Driver& driver() {
  static const Driver instance = load_driver();
  return instance;
}

class GpuBootstrap final : public Bootstrap {
 public:
  GpuBootstrap(Comm comm, int num_ranks) : comm_(comm), num_ranks_(num_ranks) {}

  ~GpuBootstrap() override {
    const Driver& d = driver();
    if (memory_ != 0) d.free(memory_);
    if (stream_ != nullptr) d.stream_destroy(stream_);
    if (context_ != nullptr) {
      d.exchange_mode(&capture_mode_);
      d.set_current(saved_);
      d.release(device_);
    }
  }

  bool open(int ordinal) {
    const Driver& d = driver();
    if (!d.is_complete || d.device_get(&device_, ordinal) != 0) return false;
    d.get_current(&saved_);
    if (d.retain(&context_, device_) != 0) return false;
    if (d.set_current(context_) != 0) return false;
    // Another thread of the program may be capturing: what this one allocates is none of its business.
    d.exchange_mode(&capture_mode_);
    return d.stream_create(&stream_, kNonBlocking) == 0;
  }

 protected:
  bool gather(const void* own, size_t bytes, void* all) override {
    const Driver& d = driver();
    const size_t total = bytes * static_cast<size_t>(num_ranks_);
    if (bytes > capacity_) {
      if (memory_ != 0) d.free(memory_);
      memory_ = 0;
      capacity_ = bytes < 4096 ? 4096 : bytes;
      if (d.alloc(&memory_, capacity_ * static_cast<size_t>(num_ranks_ + 1)) != 0) return false;
    }
    const DevicePointer from = memory_ + capacity_ * static_cast<size_t>(num_ranks_);
    if (d.to_device(from, own, bytes, stream_) != 0) return false;
    const Result result = real().AllGather(reinterpret_cast<void*>(from), reinterpret_cast<void*>(memory_), bytes,
                                           kUint8, comm_, stream_);
    if (result != kSuccess || d.to_host(all, memory_, total, stream_) != 0) return false;
    const auto deadline = std::chrono::steady_clock::now() + kLimit;
    int status = 0;
    while ((status = d.stream_query(stream_)) == kNotReady) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      std::this_thread::yield();
    }
    return status == 0;
  }

 private:
  Comm comm_;
  int num_ranks_;
  int device_ = 0;
  int capture_mode_ = kCaptureModeRelaxed;
  Context context_ = nullptr;
  Context saved_ = nullptr;
  Stream stream_ = nullptr;
  DevicePointer memory_ = 0;
  size_t capacity_ = 0;
};

}  // namespace

int Bootstrap::all_gather(void* context, const void* own, size_t bytes, void* all) {
  return static_cast<Bootstrap*>(context)->gather(own, bytes, all) ? 0 : 1;
}

std::unique_ptr<Bootstrap> make_gpu_bootstrap(Comm comm, int device, int num_ranks) {
  auto made = std::make_unique<GpuBootstrap>(comm, num_ranks);
  if (made->open(device)) return made;
  log_line("CUDA device %d cannot be used: its communicator stays with NCCL", device);
  return nullptr;
}

std::unique_ptr<Bootstrap> make_host_bootstrap(Comm comm) { return std::make_unique<HostBootstrap>(comm); }

}  // namespace llcoll::nccl
