// Schemas of the ops, their CPU kernels, and the Autograd kernel of the functional all-reduce.
#include <dlfcn.h>
#include <torch/csrc/stable/library.h>
#include <torch/headeronly/version.h>

#include <atomic>
#include <stdexcept>

#include "check.h"
#include "ops_common.h"

namespace llcoll {
namespace {

// The stable ABI cannot ask a tensor whether it requires a gradient, so c10's own function is looked up by name.
// Without it every call in grad mode takes the slow way, which is right for all tensors.
using RequiresGrad = bool (*)(const void* tensor_impl);

RequiresGrad find_requires_grad() {
  void* c10 = dlopen("libc10.so", RTLD_LAZY | RTLD_NOLOAD);
  return c10 == nullptr ? nullptr : reinterpret_cast<RequiresGrad>(dlsym(c10, "_ZNK3c1010TensorImpl13requires_gradEv"));
}

std::atomic<const CudaHooks*> cuda_hooks{nullptr};

void announce_by_device(AtenTensorHandle input, const CallText& text, const char* what) {
  int32_t device_type = aoti_torch_device_type_cpu();
  check_shim(aoti_torch_get_device_type(input, &device_type), "device");
  if (device_type == aoti_torch_device_type_cpu()) return announce(text, what);
  if (const CudaHooks* hooks = cuda_hooks.load()) {
    hooks->announce(text.group_name, text.group_name_length, what);
  }
}

// torch.library.register_autograd costs every call 3.5-5.5 us, with or without a gradient. This kernel sends the
// calls that want one to _all_reduce_grad, which has such a registration, and all others to _all_reduce. Both are
// dispatched afresh (0.45 us), so fake tensors, functionalisation and tracing see an op with a fake kernel of its own.
// They take numbers for the names: torch 2.11 leaks each string that goes through torch_call_dispatcher.
void all_reduce_autograd_kernel(StableIValue* stack, uint64_t, uint64_t) {
  OwnedTensor input = own(stack[0]);
  const StableString reduce_op(stack[1]);
  const StableString group(stack[2]);
  const StableString algorithm(stack[3]);
  StableIValue arguments[4];
  try {
    int32_t layout = 0;
    check_shim(aoti_torch_get_layout(input.get(), &layout), "layout");
    check_that(layout == aoti_torch_layout_strided(), "input has a sparse or opaque layout; it must be strided");
    const ReduceOp op = parse_reduce_op(reduce_op.data(), reduce_op.length());
    const Algorithm requested = parse_algorithm(algorithm.data(), algorithm.length());
    arguments[1] = torch::stable::detail::from(static_cast<int64_t>(op));
    arguments[2] = torch::stable::detail::from(static_cast<int64_t>(requested));
    arguments[3] = torch::stable::detail::from(static_cast<int64_t>(hash_of(group.data(), group.length())));
  } catch (const std::exception& error) {
    announce_by_device(input.get(), text_of(reduce_op, group, algorithm), error.what());
    throw;
  }
  const char* target = wants_gradient(input.get()) ? "llcoll::_all_reduce_grad" : "llcoll::_all_reduce";
  arguments[0] = torch::stable::detail::from(input.release());
  DeferredError deferred(group.data());
  const AOTITorchError error = torch_call_dispatcher(target, "", arguments, TORCH_ABI_VERSION);
  if (deferred.any()) [[unlikely]] {
    if (error == 0) own(arguments[0]);
    deferred.rethrow();
  }
  check_shim(error, target);
  stack[0] = arguments[0];
}

// A group may have a communicator on either device type, or on both.
void barrier(const StableString& group_name) {
  bool done = false;
  if (const CudaHooks* hooks = cuda_hooks.load()) {
    char error[2048];
    const int result = hooks->barrier(group_name.data(), group_name.length(), error, sizeof error);
    if (result < 0) throw std::runtime_error(error);
    done = result == 1;
  }
  if (done && !has_communicator(group_name.data(), group_name.length())) return;
  try {
    find_communicator(group_name.data(), group_name.length()).barrier(nullptr);
  } catch (const std::exception&) {
    if (!take_interrupt_follows()) throw;
  }
}

}  // namespace

bool wants_gradient(AtenTensorHandle tensor) {
  static const RequiresGrad requires_grad = find_requires_grad();
  if (!aoti_torch_grad_mode_is_enabled()) return false;
  return requires_grad == nullptr || requires_grad(impl_of(tensor));
}

void set_cuda_hooks(const CudaHooks* hooks) { cuda_hooks.store(hooks); }

}  // namespace llcoll

// torch 2.11 does not raise where a definition fails: a test checks that each of these exists.
STABLE_TORCH_LIBRARY(llcoll, m)
{
  m.def("all_reduce(Tensor input, str reduce_op=\"sum\", str group_name=\"\", *, str algorithm=\"auto\") -> Tensor");
  m.def("all_reduce_(Tensor(a!) input, str reduce_op=\"sum\", str group_name=\"\", *, str algorithm=\"auto\") -> ()");
  m.def(
      "all_reduce_out(Tensor input, str reduce_op=\"sum\", str group_name=\"\", *, str algorithm=\"auto\", "
      "Tensor(a!) out) -> ()");
  m.def("barrier(str group_name=\"\") -> ()");
  m.def("_all_reduce(Tensor input, int reduce_op, int algorithm, int group_hash) -> Tensor");
  m.def("_all_reduce_grad(Tensor input, int reduce_op, int algorithm, int group_hash) -> Tensor");
  m.def("_plan_create(Tensor input, Tensor out, str reduce_op, str group_name, str algorithm) -> int");
}

STABLE_TORCH_LIBRARY_IMPL(llcoll, CPU, m)
{
  m.impl("all_reduce", &llcoll::all_reduce_kernel);
  m.impl("_all_reduce", &llcoll::all_reduce_numbered_kernel);
  m.impl("_all_reduce_grad", &llcoll::all_reduce_numbered_kernel);
  m.impl("all_reduce_", &llcoll::all_reduce_inplace_kernel);
  m.impl("all_reduce_out", &llcoll::all_reduce_out_kernel);
  m.impl("_plan_create", &llcoll::plan_create_kernel);
}

STABLE_TORCH_LIBRARY_IMPL(llcoll, Autograd, m)
{ m.impl("all_reduce", &llcoll::all_reduce_autograd_kernel); }

STABLE_TORCH_LIBRARY_IMPL(llcoll, CompositeExplicitAutograd, m)
{ m.impl("barrier", TORCH_BOX(&llcoll::barrier)); }
