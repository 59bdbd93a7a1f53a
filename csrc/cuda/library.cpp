// What libllcoll.so finds in libllcoll_cuda.so (capi/cuda_library.h): a communicator with memory of its own.
#include <cuda_runtime.h>

#include <utility>

#include "capi/cuda_library.h"
#include "cuda/cuda_check.h"
#include "cuda/own_memory.h"

namespace llcoll {
namespace {

// The calling thread's device while a call runs, put back afterwards.
class OnDevice {
 public:
  explicit OnDevice(int device) {
    check_cuda(cudaGetDevice(&saved_), "cudaGetDevice");
    if (saved_ == device) return;
    check_cuda(cudaSetDevice(device), "cudaSetDevice");
    changed_ = true;
  }
  ~OnDevice() {
    if (changed_) cudaSetDevice(saved_);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  int saved_ = 0;
  bool changed_ = false;
};

class OwningCommunicator final : public Communicator {
 public:
  OwningCommunicator(const Options& options, const AllGather& all_gather) : Communicator(options) {
    agree(all_gather, rank(), "choosing the GPU",
          [&] { check_cuda(cudaSetDevice(options_.device_index), "cudaSetDevice"); });
    memory_ = std::make_unique<OwnMemory>(options.device_index, rank(), world_size(), cuda_buffer_bytes(options),
                                          all_gather, options.timeout_s);
    inner_ = make_cuda_communicator(options, memory_->memory(), all_gather);
  }

  ~OwningCommunicator() override {
    // A kernel that still runs must find its memory: after a failure it may wait for long, so the memory stays.
    try {
      const OnDevice scope(options_.device_index);
      inner_->check();
      if (cudaDeviceSynchronize() != cudaSuccess) memory_->keep();
      inner_.reset();
      memory_.reset();
    } catch (const std::exception&) {
      memory_->keep();
      inner_.reset();
    }
  }

  Algorithm resolve(Collective kind, size_t numel, DType dtype, ReduceOp op, Algorithm requested) const override {
    return inner_->resolve(kind, numel, dtype, op, requested);
  }
  void run(const CollectiveCall& call) override {
    const OnDevice scope(options_.device_index);
    inner_->run(call);
  }
  void barrier(void* stream) override {
    const OnDevice scope(options_.device_index);
    inner_->barrier(stream);
  }
  void enter_stream(void* stream) override {
    const OnDevice scope(options_.device_index);
    inner_->enter_stream(stream);
  }
  void leave_stream(void* stream) override {
    const OnDevice scope(options_.device_index);
    inner_->leave_stream(stream);
  }
  bool is_idle() override {
    const OnDevice scope(options_.device_index);
    return inner_->is_idle();
  }
  void check() override { inner_->check(); }
  void abort(const std::string& reason) override { inner_->abort(reason); }
  void announce_error(const std::string& what) override { inner_->announce_error(what); }
  void close() override {
    closed_ = true;
    inner_->close();
  }

 protected:
  const char* device_name() const override { return "cuda"; }

 private:
  std::unique_ptr<OwnMemory> memory_;
  std::shared_ptr<Communicator> inner_;
};

// The caller's device is its own business: set-up puts it back too.
std::shared_ptr<Communicator> make(const Options& options, const AllGather& all_gather) {
  int saved = 0;
  const bool has_device = cudaGetDevice(&saved) == cudaSuccess;
  auto restore = [&] {
    if (has_device) cudaSetDevice(saved);
  };
  try {
    auto made = std::make_shared<OwningCommunicator>(options, all_gather);
    restore();
    return made;
  } catch (...) {
    restore();
    throw;
  }
}

}  // namespace
}  // namespace llcoll

extern "C" __attribute__((visibility("default"))) const llcoll::capi::CudaLibrary* llcoll_cuda_library() {
  static const llcoll::capi::CudaLibrary library{llcoll::capi::kCudaLibraryVersion, &llcoll::make};
  return &library;
}
