// What the CPU and the CUDA kernels of the ops share. Compiled once into each shared object: only the device differs.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/c/shim.h>

#include <cstdint>
#include <exception>
#include <string>
#include <utility>

#include "communicator.h"
#include "stable_string.h"

namespace llcoll {

// The failed call's own message is lost in the C shim (torch prints it to stderr), so ours names the step.
void check_shim(AOTITorchError error, const char* step);

// Gradients are the Autograd kernel's business: copies in here must record nothing.
class NoGrad {
 public:
  NoGrad() : was_enabled_(aoti_torch_grad_mode_is_enabled()) { aoti_torch_grad_mode_set_enabled(false); }
  ~NoGrad() { aoti_torch_grad_mode_set_enabled(was_enabled_); }
  NoGrad(const NoGrad&) = delete;
  NoGrad& operator=(const NoGrad&) = delete;

 private:
  bool was_enabled_;
};

// Owns one reference to a tensor.
class OwnedTensor {
 public:
  OwnedTensor() = default;
  explicit OwnedTensor(AtenTensorHandle handle) : handle_(handle) {}
  OwnedTensor(OwnedTensor&& other) noexcept : handle_(other.release()) {}
  OwnedTensor& operator=(OwnedTensor&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~OwnedTensor() {
    if (handle_ != nullptr) aoti_torch_delete_tensor_object(handle_);
  }
  AtenTensorHandle get() const { return handle_; }
  AtenTensorHandle release() { return std::exchange(handle_, nullptr); }
  explicit operator bool() const { return handle_ != nullptr; }

 private:
  AtenTensorHandle handle_ = nullptr;
};

inline OwnedTensor own(StableIValue value) { return OwnedTensor(torch::stable::detail::to<AtenTensorHandle>(value)); }

// A dense or strided tensor of this shared object's device with a supported type. `handle` is borrowed.
struct TensorView {
  AtenTensorHandle handle;
  size_t numel;
  DType dtype;
  int32_t device_index;
  bool contiguous;
};

// Throws where it is none; `what` names it.
TensorView checked_view(AtenTensorHandle tensor, const char* what);
// A tensor that holds one memory place twice cannot be written: the result would depend on the order.
void check_writable(const TensorView& view, const char* what);

// Borrowed from the tensor.
struct Shape {
  int64_t num_dims = 0;
  int64_t* sizes = nullptr;
};
Shape shape_of(AtenTensorHandle tensor);
std::string shape_text(const Shape& shape);

// The arguments of one op call, as they came.
struct CallText {
  const char* reduce_op;
  size_t reduce_op_length;
  const char* group_name;
  size_t group_name_length;
  const char* algorithm;
  size_t algorithm_length;
};

inline CallText text_of(const StableString& reduce_op, const StableString& group, const StableString& algorithm) {
  return {reduce_op.data(), reduce_op.length(), group.data(), group.length(), algorithm.data(), algorithm.length()};
}

// A call whose arguments have all been checked, and the algorithm resolved.
struct Checked {
  TensorView input;
  TensorView output;  // the input's view where it is in place, handle null where the result is to be allocated
  ReduceOp op;
  Algorithm algorithm;
  Communicator* communicator;
};

enum class Form { kFunctional, kInPlace, kOut };

// All checks of an all-reduce: type, device, layout, operator, algorithm, group, out. Throws before anything is sent;
// in debug mode the peers hear of it, so they fail at once. `output` is null unless `form` is kOut.
Checked check_all_reduce(AtenTensorHandle input, AtenTensorHandle output, Form form, const CallText& text);

// The functional form with the names already turned into numbers; `group_name` only for errors, may be null.
Checked check_all_reduce(AtenTensorHandle input, ReduceOp op, Algorithm requested, uint64_t group_hash,
                         const char* group_name);
// In debug mode, tells the group's peers that this rank raised instead of calling.
void announce(const CallText& text, const char* what);

// Fresh contiguous storage like `view`.
OwnedTensor empty_like(const TensorView& view);
// The same but for its first dimension (which a 0-dim tensor gets).
OwnedTensor empty_rows(const TensorView& like, int64_t num_rows);
// Same, for a tensor that check_all_reduce refused.
OwnedTensor empty_like(AtenTensorHandle handle);
TensorView view_of_fresh(const TensorView& like, const OwnedTensor& tensor);

// Runs (CPU) or enqueues (CUDA) it. Strided, or partly overlapping, tensors go through contiguous temporaries.
void run_all_reduce(const Checked& call);

// A handle points to an at::Tensor, whose only member is the pointer to its TensorImpl.
inline void* impl_of(AtenTensorHandle tensor) { return *reinterpret_cast<void* const*>(tensor); }
// dst.copy_(src), outside autograd.
void copy_tensor(AtenTensorHandle dst, AtenTensorHandle src);
const void* data_of(AtenTensorHandle tensor);
void* mutable_data_of(AtenTensorHandle tensor);

// The ops' kernels in torch's boxed calling convention: they take over the arguments' references.
void all_reduce_kernel(StableIValue* stack, uint64_t num_inputs, uint64_t num_outputs);
void all_reduce_numbered_kernel(StableIValue* stack, uint64_t num_inputs, uint64_t num_outputs);
void all_reduce_inplace_kernel(StableIValue* stack, uint64_t num_inputs, uint64_t num_outputs);
void all_reduce_out_kernel(StableIValue* stack, uint64_t num_inputs, uint64_t num_outputs);
void plan_create_kernel(StableIValue* stack, uint64_t num_inputs, uint64_t num_outputs);

// An op can raise RuntimeError only, and no Python code runs between it and the caller's handler. So where Python is
// about to raise KeyboardInterrupt by itself, as soon as the op returns, the op just returns: nobody sees its result.
void set_interrupt_follows();
bool take_interrupt_follows();

// What lives in _C and serves either device type reaches the CUDA communicators, which live in _cuda, through these.
struct CudaHooks {
  // Enqueues a barrier on the current stream. 1: done, 0: no such group there, -1: failed, with the text in `error`.
  int (*barrier)(const char* group_name, size_t length, char* error, size_t error_size);
  // Debug mode: tells the group's peers of an error that _C found in a call on CUDA tensors.
  void (*announce)(const char* group_name, size_t length, const char* what);
};
constexpr const char* kCudaHooksCapsule = "llcoll._cuda.hooks";
void set_cuda_hooks(const CudaHooks* hooks);

// Whether a call of the Autograd key wants a gradient. CPU object only: the Autograd kernels live there.
bool wants_gradient(AtenTensorHandle tensor);

// While one exists, all_reduce_numbered_kernel on this thread stores its exception here and returns an arbitrary
// tensor: torch's C dispatcher call, through which the Autograd kernel goes, would print the message and lose it.
class DeferredError {
 public:
  explicit DeferredError(const char* group_name);
  ~DeferredError();
  DeferredError(const DeferredError&) = delete;
  DeferredError& operator=(const DeferredError&) = delete;
  void store(std::exception_ptr error) { error_ = std::move(error); }
  // The innermost of this thread, or null.
  static DeferredError* current();
  const char* group_name() const { return group_name_; }
  bool any() const { return error_ != nullptr; }
  [[noreturn]] void rethrow() { std::rethrow_exception(error_); }

 private:
  std::exception_ptr error_;
  DeferredError* outer_;
  const char* group_name_;
};

// The composite op lives in _C, the kernel that it reaches may live in _cuda: _cuda uses the slot that _C gave it.
using DeferredErrorSlot = DeferredError** (*)();
constexpr const char* kDeferredErrorCapsule = "llcoll._C.deferred_error";
DeferredErrorSlot deferred_error_slot();
void use_deferred_error_slot(DeferredErrorSlot other);

// The device and the stream of one call: nothing on CPU.
class DeviceScope {
 public:
#ifdef USE_CUDA
  explicit DeviceScope(int32_t device_index) {
    check_shim(aoti_torch_create_cuda_guard(device_index, &guard_), "device guard");
    if (aoti_torch_get_current_cuda_stream(device_index, &stream_) != 0) {
      aoti_torch_delete_cuda_guard(guard_);
      check_shim(1, "current stream");
    }
  }
  ~DeviceScope() { aoti_torch_delete_cuda_guard(guard_); }
#else
  explicit DeviceScope(int32_t) {}
#endif
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;
  void* stream() const { return stream_; }

 private:
#ifdef USE_CUDA
  CUDAGuardHandle guard_ = nullptr;
#endif
  void* stream_ = nullptr;
};

}  // namespace llcoll
