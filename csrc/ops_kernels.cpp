// The kernels of the ops, the same for CPU and CUDA. Boxed by hand: the handles are used as they come, which saves the
// reference counts and copies that torch's typed wrappers make on each call.
#include <atomic>

#include "ops_common.h"
#include "plan.h"

namespace llcoll {
namespace {

thread_local DeferredError* own_deferred_error = nullptr;
std::atomic<DeferredErrorSlot> slot{[]() -> DeferredError** { return &own_deferred_error; }};
DeferredError*& deferred_error() { return *slot.load(std::memory_order_relaxed)(); }
thread_local bool interrupt_follows = false;

void run_interruptible(const Checked& call) {
  try {
    run_all_reduce(call);
  } catch (const std::exception&) {
    if (!take_interrupt_follows()) throw;
  }
}

StableIValue run_functional(Checked call) {
  OwnedTensor result = empty_like(call.input);
  call.output = view_of_fresh(call.input, result);
  run_interruptible(call);
  return torch::stable::detail::from(result.release());
}

}  // namespace

void set_interrupt_follows() { interrupt_follows = true; }
bool take_interrupt_follows() { return std::exchange(interrupt_follows, false); }

DeferredError::DeferredError(const char* group_name)
    : outer_(std::exchange(deferred_error(), this)), group_name_(group_name) {}
DeferredError* DeferredError::current() { return deferred_error(); }
DeferredError::~DeferredError() { deferred_error() = outer_; }
DeferredErrorSlot deferred_error_slot() { return slot.load(); }
void use_deferred_error_slot(DeferredErrorSlot other) { slot = other; }

void all_reduce_kernel(StableIValue* stack, uint64_t, uint64_t) {
  const OwnedTensor input = own(stack[0]);
  const StableString reduce_op(stack[1]);
  const StableString group(stack[2]);
  const StableString algorithm(stack[3]);
  stack[0] =
      run_functional(check_all_reduce(input.get(), nullptr, Form::kFunctional, text_of(reduce_op, group, algorithm)));
}

void all_reduce_numbered_kernel(StableIValue* stack, uint64_t, uint64_t) {
  const OwnedTensor input = own(stack[0]);
  const auto op = static_cast<ReduceOp>(torch::stable::detail::to<int64_t>(stack[1]));
  const auto algorithm = static_cast<Algorithm>(torch::stable::detail::to<int64_t>(stack[2]));
  const auto group_hash = static_cast<uint64_t>(torch::stable::detail::to<int64_t>(stack[3]));
  try {
    const DeferredError* outer = DeferredError::current();
    const char* group_name = outer == nullptr ? nullptr : outer->group_name();
    stack[0] = run_functional(check_all_reduce(input.get(), op, algorithm, group_hash, group_name));
  } catch (...) {
    DeferredError* outer = DeferredError::current();
    if (outer == nullptr) throw;
    outer->store(std::current_exception());
    stack[0] = torch::stable::detail::from(empty_like(input.get()).release());
  }
}

void all_reduce_inplace_kernel(StableIValue* stack, uint64_t, uint64_t) {
  const OwnedTensor input = own(stack[0]);
  const StableString reduce_op(stack[1]);
  const StableString group(stack[2]);
  const StableString algorithm(stack[3]);
  run_interruptible(check_all_reduce(input.get(), nullptr, Form::kInPlace, text_of(reduce_op, group, algorithm)));
}

void all_reduce_out_kernel(StableIValue* stack, uint64_t, uint64_t) {
  const OwnedTensor input = own(stack[0]);
  const StableString reduce_op(stack[1]);
  const StableString group(stack[2]);
  const StableString algorithm(stack[3]);
  const OwnedTensor output = own(stack[4]);
  run_interruptible(check_all_reduce(input.get(), output.get(), Form::kOut, text_of(reduce_op, group, algorithm)));
}

void plan_create_kernel(StableIValue* stack, uint64_t, uint64_t) {
  OwnedTensor input = own(stack[0]);
  OwnedTensor output = own(stack[1]);
  const StableString reduce_op(stack[2]);
  const StableString group(stack[3]);
  const StableString algorithm(stack[4]);
  const Checked call = check_all_reduce(input.get(), output.get(), Form::kOut, text_of(reduce_op, group, algorithm));
  const int64_t id = store_plan(
      std::make_unique<AllReducePlan>(call, std::move(input), std::move(output), share_communicator(group.str())));
  stack[0] = torch::stable::detail::from(id);
}

}  // namespace llcoll
