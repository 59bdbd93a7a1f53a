#include "ops_torch.h"

#include <initializer_list>

#include "check.h"

namespace llcoll {
namespace {

void call_dispatcher(const char* op, StableIValue* stack, const char* step) {
  check_shim(torch_call_dispatcher(op, "", stack, TORCH_ABI_VERSION), step);
}

StableIValue new_string(const char* text, size_t length) {
  StringHandle handle = nullptr;
  check_shim(torch_new_string_handle(text, length, &handle), "string");
  return torch::stable::detail::from(handle);
}

StableIValue new_reference(AtenTensorHandle tensor) {
  AtenTensorHandle handle = nullptr;
  check_shim(aoti_torch_new_tensor_handle(tensor, &handle), "tensor reference");
  return torch::stable::detail::from(handle);
}

// What the functional ops call it; an average is a sum first, see divide().
std::string functional_name_of(ReduceOp op) {
  return op == ReduceOp::kProd ? "product" : name_of(op == ReduceOp::kAvg ? ReduceOp::kSum : op);
}

// Gloo knows no average, so it is a sum and a division.
void divide(AtenTensorHandle tensor, DType dtype, int world_size) {
  AtenTensorHandle divisor = nullptr;
  check_shim(aoti_torch_scalar_to_tensor_int64(world_size, &divisor), "divisor");
  const auto rounding = is_floating(dtype) ? torch::stable::detail::from(std::nullopt)
                                           : torch::stable::detail::from(new StableIValue(new_string("trunc", 5)));
  StableIValue stack[3] = {new_reference(tensor), torch::stable::detail::from(divisor), rounding};
  check_shim(torch_call_dispatcher("aten::div_", "Tensor_mode", stack, TORCH_ABI_VERSION), "division of the average");
  own(stack[0]);
}

// `count` elements of a contiguous tensor, from `begin` on, as a vector that shares its memory.
OwnedTensor flat(AtenTensorHandle tensor, size_t begin, size_t count) {
  const auto size = static_cast<int64_t>(count);
  const int64_t stride = 1;
  AtenTensorHandle view = nullptr;
  // Its offset counts from the tensor's own.
  check_shim(aoti_torch__reinterpret_tensor(tensor, 1, &size, &stride, static_cast<int64_t>(begin), &view),
             "view of a part");
  return OwnedTensor(view);
}

StableIValue new_list(const size_t* counts, size_t same, int length) {
  StableListHandle list = nullptr;
  check_shim(torch_new_list_reserve_size(static_cast<size_t>(length), &list), "list");
  for (int i = 0; i < length; ++i) {
    const auto count = static_cast<int64_t>(counts == nullptr ? same : counts[i]);
    check_shim(torch_list_push_back(list, torch::stable::detail::from(count)), "list item");
  }
  return torch::stable::detail::from(list);
}

// What the functional op made, once it is there.
OwnedTensor waited(StableIValue result, const char* step) {
  StableIValue stack[1] = {result};
  call_dispatcher("_c10d_functional::wait_tensor", stack, step);
  return own(stack[0]);
}

class TorchExchange {
 public:
  TorchExchange(const CollectiveCall& call, AtenTensorHandle input, AtenTensorHandle output, const Options& options)
      : call_(call), input_(input), output_(output), options_(options), num_ranks_(options.world_size) {
    step_ = concat("torch.distributed ", name_of(call.kind), " of ", name_of(call.dtype), ", group '",
                   options.group_name, "'");
  }

  void run() const {
    switch (call_.kind) {
      case Collective::kAllGather:
        return call_.output_splits == nullptr ? gather() : gather_unequal();
      case Collective::kReduceScatter:
        return call_.input_splits == nullptr ? scatter() : scatter_unequal();
      case Collective::kBroadcast:
        return broadcast();
      case Collective::kReduce:
        return reduce();
      default:
        return all_to_all();
    }
  }

 private:
  StableIValue group() const { return new_string(options_.group_name.data(), options_.group_name.size()); }
  size_t whole() const { return call_.numel * static_cast<size_t>(num_ranks_); }

  void gather() const {
    if (call_.numel == 0) return;
    const OwnedTensor from = flat(input_, 0, call_.numel);
    const OwnedTensor to = flat(output_, 0, whole());
    StableIValue stack[4] = {new_reference(from.get()), torch::stable::detail::from(int64_t{num_ranks_}), group(),
                             new_reference(to.get())};
    call_dispatcher("_c10d_functional::all_gather_into_tensor_out", stack, step_.c_str());
    waited(stack[0], step_.c_str());
  }

  // A broadcast from each rank that has something, as torch.distributed does it for NCCL.
  void gather_unequal() const {
    size_t begin = 0;
    for (int p = 0; p < num_ranks_; begin += call_.output_splits[p++]) {
      const size_t count = call_.output_splits[p];
      if (count == 0) continue;
      const OwnedTensor part = flat(output_, begin, count);
      if (p == options_.rank) copy_tensor(part.get(), flat(input_, 0, count).get());
      broadcast_in_place(part.get(), p);
    }
  }

  void scatter() const {
    if (call_.numel == 0) return;
    const std::string name = functional_name_of(call_.op);
    const OwnedTensor from = flat(input_, 0, whole());
    StableIValue stack[4] = {new_reference(from.get()), new_string(name.data(), name.size()),
                             torch::stable::detail::from(int64_t{num_ranks_}), group()};
    call_dispatcher("_c10d_functional::reduce_scatter_tensor", stack, step_.c_str());
    const OwnedTensor part = waited(stack[0], step_.c_str());
    if (call_.op == ReduceOp::kAvg) divide(part.get(), call_.dtype, num_ranks_);
    copy_tensor(flat(output_, 0, call_.numel).get(), part.get());
  }

  // The functional ops have no reduce-scatter of unequal parts and no reduce: an all-reduce of a copy.
  OwnedTensor reduced(size_t numel) const {
    const TensorView like{input_, numel, call_.dtype, options_.device_index, true};
    OwnedTensor copy = empty_like(like);
    copy_tensor(copy.get(), input_);
    torch_all_reduce(copy.get(), call_.dtype, call_.op, options_);
    return copy;
  }

  void scatter_unequal() const {
    size_t total = 0, begin = 0;
    for (int p = 0; p < num_ranks_; total += call_.input_splits[p++]) {
      if (p == options_.rank) begin = total;
    }
    if (total == 0) return;
    const OwnedTensor all = reduced(total);
    const size_t own_count = call_.input_splits[options_.rank];
    if (own_count == 0) return;
    copy_tensor(flat(output_, 0, own_count).get(), flat(all.get(), begin, own_count).get());
  }

  void broadcast_in_place(AtenTensorHandle tensor, int root) const {
    StableIValue stack[3] = {new_reference(tensor), torch::stable::detail::from(int64_t{root}), group()};
    call_dispatcher("_c10d_functional::broadcast_", stack, step_.c_str());
    waited(stack[0], step_.c_str());
  }

  void broadcast() const {
    if (call_.numel == 0) return;
    if (options_.rank == call_.root && input_ != output_) copy_tensor(output_, input_);
    broadcast_in_place(output_, call_.root);
  }

  void reduce() const {
    if (call_.numel == 0) return;
    const OwnedTensor all = reduced(call_.numel);
    if (options_.rank == call_.root) copy_tensor(output_, all.get());
  }

  // Always, with splits: a rank does not know that nobody has anything.
  void all_to_all() const {
    size_t sent = whole(), received = whole();
    if (call_.input_splits != nullptr) {
      sent = received = 0;
      for (int p = 0; p < num_ranks_; ++p) sent += call_.input_splits[p], received += call_.output_splits[p];
    } else if (sent == 0) {
      return;
    }
    const OwnedTensor from = flat(input_, 0, sent);
    StableIValue stack[4] = {new_reference(from.get()), new_list(call_.output_splits, call_.numel, num_ranks_),
                             new_list(call_.input_splits, call_.numel, num_ranks_), group()};
    call_dispatcher("_c10d_functional::all_to_all_single", stack, step_.c_str());
    const OwnedTensor result = waited(stack[0], step_.c_str());
    if (received != 0) copy_tensor(flat(output_, 0, received).get(), result.get());
  }

  const CollectiveCall& call_;
  const AtenTensorHandle input_;
  const AtenTensorHandle output_;
  const Options& options_;
  const int num_ranks_;
  std::string step_;
};

}  // namespace

void torch_all_reduce(AtenTensorHandle tensor, DType dtype, ReduceOp op, const Options& options) {
  const NoGrad guard;
  const std::string name = functional_name_of(op);
  const std::string step = concat("torch.distributed all_reduce of ", name_of(dtype), ", reduce_op '", name_of(op),
                                  "', group '", options.group_name, "'");
  StableIValue stack[3] = {new_reference(tensor), new_string(name.data(), name.size()),
                           new_string(options.group_name.data(), options.group_name.size())};
  // Both return their argument: the one reference travels through.
  call_dispatcher("_c10d_functional::all_reduce_", stack, step.c_str());
  call_dispatcher("_c10d_functional::wait_tensor", stack, step.c_str());
  own(stack[0]);
  if (op == ReduceOp::kAvg) divide(tensor, dtype, options.world_size);
}

void torch_exchange(const CollectiveCall& call, AtenTensorHandle input, AtenTensorHandle output,
                    const Options& options) {
  const NoGrad guard;
  TorchExchange(call, input, output, options).run();
}

}  // namespace llcoll
