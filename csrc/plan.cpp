#include "plan.h"

#include <map>
#include <mutex>

#include "check.h"

namespace llcoll {
namespace {

constexpr size_t kShortBytes = 64 << 10;

struct PlanStore {
  std::mutex mutex;
  std::map<int64_t, std::unique_ptr<Plan>> plans;
  int64_t next = 0;
};

PlanStore& plan_store() {
  static PlanStore* instance = new PlanStore;
  return *instance;
}

bool overlaps(const void* a, const void* b, size_t num_bytes) {
  const auto x = reinterpret_cast<uintptr_t>(a);
  const auto y = reinterpret_cast<uintptr_t>(b);
  return x < y + num_bytes && y < x + num_bytes;
}

size_t numel_of(AtenTensorHandle tensor) {
  int64_t numel = 0;
  check_shim(aoti_torch_get_numel(tensor, &numel), "numel");
  return static_cast<size_t>(numel);
}

}  // namespace

Plan::Plan(std::shared_ptr<Communicator> communicator, OwnedTensor input, OwnedTensor output)
    : communicator_(std::move(communicator)), input_(std::move(input)), output_(std::move(output)) {
  output_data_ = mutable_data_of(output_.get());
  input_data_ = data_of(input_.get());
  input_numel_ = numel_of(input_.get());
  output_numel_ = numel_of(output_.get());
  is_in_place_ = impl_of(input_.get()) == impl_of(output_.get());
}

void Plan::set_short(size_t num_bytes, Algorithm algorithm) {
  is_short_ = num_bytes <= kShortBytes && algorithm != Algorithm::kTorch;
}

void Plan::check_open() const {
  if (communicator_->closed()) [[unlikely]]
    fail_with("the communicator of the plan's group '", communicator_->options().group_name, "' was shut down");
}

void Plan::check_unchanged() const {
  // Asked for to read: asking to write would move a copy-on-write tensor, which then fails the comparison as it should.
  const void* input = data_of(input_.get());
  bool same = input == input_data_ && numel_of(input_.get()) == input_numel_;
  if (same && is_in_place_) return;
  const void* output = data_of(output_.get());
  same = same && output == output_data_ && numel_of(output_.get()) == output_numel_;
  check_that(same, "a tensor of the plan has other storage or another size than when the plan was made (", input_numel_,
             " elements at ", input_data_, " -> ", output_numel_, " at ", output_data_, ", now ",
             numel_of(input_.get()), " at ", input, " -> ", numel_of(output_.get()), " at ", output,
             "); make a new plan");
}

AllReducePlan::AllReducePlan(const Checked& call, OwnedTensor input, OwnedTensor output,
                             std::shared_ptr<Communicator> communicator)
    : Plan(std::move(communicator), std::move(input), std::move(output)), call_(call) {
  call_.input.handle = input_.get();
  call_.output.handle = output_.get();
  call_.communicator = communicator_.get();
  const size_t num_bytes = call_.input.numel * element_bytes(call_.input.dtype);
  set_short(num_bytes, call_.algorithm);
  is_direct_ = call_.input.contiguous && call_.output.contiguous && call_.algorithm != Algorithm::kTorch &&
               call_.input.numel != 0 &&
               (input_data_ == output_data_ || !overlaps(input_data_, output_data_, num_bytes));
}

void AllReducePlan::run() {
  check_open();
  check_unchanged();
  if (!is_direct_) {
    run_all_reduce(call_);
    return;
  }
  const DeviceScope scope(call_.input.device_index);
  communicator_->run(
      {input_data_, output_data_, call_.input.numel, call_.input.dtype, call_.op, call_.algorithm, scope.stream()});
}

std::string AllReducePlan::signature() const {
  return concat("all_reduce of ", call_.input.numel, " x ", name_of(call_.input.dtype), ", reduce_op '",
                name_of(call_.op), "', algorithm '", name_of(call_.algorithm), "'");
}

int64_t store_plan(std::unique_ptr<Plan> plan) {
  PlanStore& store = plan_store();
  const std::lock_guard<std::mutex> lock(store.mutex);
  store.plans.emplace(store.next, std::move(plan));
  return store.next++;
}

std::unique_ptr<Plan> take_plan(int64_t id) {
  PlanStore& store = plan_store();
  const std::lock_guard<std::mutex> lock(store.mutex);
  const auto it = store.plans.find(id);
  check_that(it != store.plans.end(), "no plan with id ", id, " waits to be taken");
  std::unique_ptr<Plan> plan = std::move(it->second);
  store.plans.erase(it);
  return plan;
}

}  // namespace llcoll
