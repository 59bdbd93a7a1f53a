#include "ops_collectives.h"

#include <algorithm>
#include <exception>

#include "check.h"
#include "ops_torch.h"
#include "plan.h"

namespace llcoll {
namespace {

// A call whose arguments have all been checked. Splits are in elements.
struct Exchange {
  Collective kind;
  ReduceOp op;
  Algorithm algorithm;
  Communicator* communicator;
  int root;
  TensorView input;
  TensorView output;  // handle null where the result is to be allocated
  size_t numel;       // as in CollectiveCall
  int64_t out_rows;
  bool has_splits;
  size_t in_bytes;
  size_t out_bytes;
  size_t own_offset;  // bytes: where this rank's own part lies in the tensor that has all parts
  size_t input_splits[kMaxRanks];
  size_t output_splits[kMaxRanks];
};

// What of an input's shape matters: rows along dimension 0.
struct Rows {
  int64_t count = 1;
  int64_t elements = 1;  // of one row
};

Rows rows_of(const Shape& shape) {
  Rows rows;
  if (shape.num_dims > 0) rows.count = shape.sizes[0];
  for (int64_t d = 1; d < shape.num_dims; ++d) rows.elements *= shape.sizes[d];
  return rows;
}

std::string list_text(const IntList& list) {
  std::string text = "[";
  for (size_t i = 0; i < list.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(list[i]);
  return text + "]";
}

// Turns rows into elements. Returns the sum of the rows.
int64_t read_splits(const IntList& list, const char* what, int num_ranks, int64_t row_elements, size_t* splits) {
  check_that(list.size() == static_cast<size_t>(num_ranks), what, " ", list_text(list), " has ", list.size(),
             " numbers; the group has ", num_ranks, " ranks");
  check_that(num_ranks <= kMaxRanks, "splits serve groups of at most ", kMaxRanks, " ranks; this one has ", num_ranks);
  int64_t sum = 0;
  for (int p = 0; p < num_ranks; ++p) {
    const int64_t rows = list[p];
    check_that(rows >= 0 && rows <= (int64_t{1} << 48), what, " ", list_text(list), " has ", rows, " for rank ", p);
    sum += rows;
    splits[p] = static_cast<size_t>(rows * row_elements);
  }
  return sum;
}

void check_sum(int64_t sum, const IntList& list, const char* what, const Shape& shape, const char* whose) {
  const int64_t rows = shape.num_dims == 0 ? 1 : shape.sizes[0];
  check_that(sum == rows, what, " ", list_text(list), " add up to ", sum, ", but ", whose, " of shape ",
             shape_text(shape), " has ", rows, " rows");
}

void check_divisible(const Shape& shape, int num_ranks, Collective kind) {
  check_that(shape.num_dims > 0 && shape.sizes[0] % num_ranks == 0, "input of shape ", shape_text(shape), " of a ",
             name_of(kind), " cannot be cut into ", num_ranks, " equal parts along dimension 0; give splits");
}

void read_parts(const ExchangeArguments& arguments, Exchange& call) {
  const Shape shape = shape_of(call.input.handle);
  const Rows rows = rows_of(shape);
  const int num_ranks = call.communicator->world_size();
  const int rank = call.communicator->rank();
  const IntList& given_in = arguments.input_splits;
  const IntList& given_out = arguments.output_splits;
  switch (call.kind) {
    case Collective::kBroadcast:
    case Collective::kReduce:
      check_that(arguments.root >= 0 && arguments.root < num_ranks, "root is ", arguments.root,
                 "; the group has ranks 0 to ", num_ranks - 1);
      call.root = static_cast<int>(arguments.root);
      call.out_rows = rows.count;
      call.numel = call.input.numel;
      break;
    case Collective::kAllGather:
      if (given_out.size() != 0) {
        call.has_splits = true;
        call.out_rows = read_splits(given_out, "splits", num_ranks, rows.elements, call.output_splits);
        check_that(given_out[rank] == rows.count, "splits ", list_text(given_out), " give rank ", rank, " ",
                   given_out[rank], " rows, but its input of shape ", shape_text(shape), " has ", rows.count);
      } else {
        call.out_rows = rows.count * num_ranks;
        call.numel = call.input.numel;
      }
      break;
    case Collective::kReduceScatter:
      if (given_in.size() != 0) {
        call.has_splits = true;
        const int64_t sum = read_splits(given_in, "splits", num_ranks, rows.elements, call.input_splits);
        check_sum(sum, given_in, "splits", shape, "input");
        check_that(shape.num_dims > 0, "input of a reduce_scatter must have a dimension 0");
        call.out_rows = given_in[rank];
      } else {
        check_divisible(shape, num_ranks, call.kind);
        call.out_rows = rows.count / num_ranks;
        call.numel = call.input.numel / num_ranks;
      }
      break;
    default:
      if (given_in.size() == 0 && given_out.size() == 0) {
        check_divisible(shape, num_ranks, call.kind);
        call.out_rows = rows.count;
        call.numel = call.input.numel / num_ranks;
        break;
      }
      check_that(given_in.size() != 0 && given_out.size() != 0,
                 "give both input_splits and output_splits to all_to_all, or neither; this rank's are ",
                 list_text(given_in), " and ", list_text(given_out));
      check_that(shape.num_dims > 0, "input of an all_to_all must have a dimension 0");
      call.kind = Collective::kAllToAllV;
      call.has_splits = true;
      check_sum(read_splits(given_in, "input_splits", num_ranks, rows.elements, call.input_splits), given_in,
                "input_splits", shape, "input");
      call.out_rows = read_splits(given_out, "output_splits", num_ranks, rows.elements, call.output_splits);
      check_that(given_in[rank] == given_out[rank], "input_splits ", list_text(given_in), " and output_splits ",
                 list_text(given_out), " differ in what rank ", rank, " gives itself");
  }
  const size_t element = element_bytes(call.input.dtype);
  call.in_bytes = call.input.numel * element;
  call.out_bytes = static_cast<size_t>(call.out_rows * rows.elements) * element;
  size_t before = call.numel * static_cast<size_t>(rank);
  if (call.has_splits) {
    before = 0;
    const size_t* splits = call.kind == Collective::kAllGather ? call.output_splits : call.input_splits;
    for (int p = 0; p < rank; ++p) before += splits[p];
  }
  call.own_offset = has_root(call.kind) ? 0 : before * element;
}

size_t largest_part(const Exchange& call) {
  if (!call.has_splits || call.kind == Collective::kAllToAllV) return call.numel;
  const size_t* splits = call.kind == Collective::kAllGather ? call.output_splits : call.input_splits;
  return *std::max_element(splits, splits + call.communicator->world_size());
}

void check_out_shape(const Exchange& call) {
  check_that(call.output.dtype == call.input.dtype, "out has dtype ", name_of(call.output.dtype), ", input has ",
             name_of(call.input.dtype));
  check_that(call.output.device_index == call.input.device_index, "out is on device ", call.output.device_index,
             ", input on ", call.input.device_index);
  const Shape in = shape_of(call.input.handle);
  const Shape out = shape_of(call.output.handle);
  const bool keeps_shape = has_root(call.kind);
  bool same = out.num_dims == (keeps_shape ? in.num_dims : std::max<int64_t>(in.num_dims, 1)) &&
              (out.num_dims == 0 || out.sizes[0] == call.out_rows);
  for (int64_t d = 1; same && d < in.num_dims; ++d) same = in.sizes[d] == out.sizes[d];
  check_that(same, "out has shape ", shape_text(out), "; the result of ", name_of(call.kind), " of ", shape_text(in),
             " has ", call.out_rows, " rows");
  check_writable(call.output, "out");
}

Exchange checked_exchange(const ExchangeArguments& arguments, Form form, ReduceOp op, Algorithm requested,
                          Communicator& communicator) {
  Exchange call{};
  call.kind = arguments.kind;
  call.op = op;
  call.communicator = &communicator;
  call.input = checked_view(arguments.input.get(), "input");
#ifdef USE_CUDA
  const int32_t device_index = communicator.options().device_index;
  check_that(call.input.device_index == device_index, "input is on cuda:", call.input.device_index,
             ", the group's communicator on cuda:", device_index);
#endif
  read_parts(arguments, call);
  call.algorithm = communicator.resolve(call.kind, largest_part(call), call.input.dtype, op, requested);
  if (form == Form::kOut) {
    call.output = checked_view(arguments.out.get(), "out");
    check_out_shape(call);
  } else if (form == Form::kInPlace) {
    call.output = call.input;
    check_writable(call.output, "input");
  }
  return call;
}

// With the names as they came. In debug mode the peers hear of an error, so they fail at once.
Exchange checked_exchange(const ExchangeArguments& arguments, Form form) {
  try {
    ReduceOp op = ReduceOp::kSum;
    if (arguments.reduce_op) op = parse_reduce_op(arguments.reduce_op->data(), arguments.reduce_op->length());
    const Algorithm requested = parse_algorithm(arguments.algorithm->data(), arguments.algorithm->length());
    Communicator& communicator = find_communicator(arguments.group->data(), arguments.group->length());
    return checked_exchange(arguments, form, op, requested, communicator);
  } catch (const std::exception& error) {
    announce(arguments, error.what());
    throw;
  }
}

bool overlaps(const void* a, size_t a_bytes, const void* b, size_t b_bytes) {
  const auto x = reinterpret_cast<uintptr_t>(a);
  const auto y = reinterpret_cast<uintptr_t>(b);
  return a_bytes != 0 && b_bytes != 0 && x < y + b_bytes && y < x + a_bytes;
}

// True where input and output lie as the algorithms allow: apart, or this rank's own part in its place.
bool lie_well(const Exchange& call, const void* input, const void* output) {
  if (!overlaps(input, call.in_bytes, output, call.out_bytes)) return true;
  const char* in = static_cast<const char*>(input);
  const char* out = static_cast<const char*>(output);
  if (call.algorithm == Algorithm::kTorch) return has_root(call.kind) && in == out;
  switch (call.kind) {
    case Collective::kAllGather:
      return in == out + call.own_offset;
    case Collective::kReduceScatter:
      return out == in + call.own_offset;
    case Collective::kAllToAllV:
      return false;
    default:
      return in == out;
  }
}

// A temporary where the algorithms need one: contiguous, like a tensor of `rows` rows.
OwnedTensor dense(const Exchange& call, int64_t rows) {
  return has_root(call.kind) ? empty_like(call.input) : empty_rows(call.input, rows);
}

CollectiveCall to_run(const Exchange& call, const void* input, void* output, void* stream) {
  return {input,
          output,
          call.numel,
          call.input.dtype,
          call.op,
          call.algorithm,
          stream,
          call.kind,
          call.root,
          call.has_splits ? call.input_splits : nullptr,
          call.has_splits ? call.output_splits : nullptr};
}

// Runs (CPU) or enqueues (CUDA) it. Strided, or wrongly overlapping, tensors go through contiguous temporaries.
void run_exchange(const Exchange& call) {
  const DeviceScope scope(call.input.device_index);
  const bool is_root = call.root == call.communicator->rank();
  const bool reads = call.kind != Collective::kBroadcast || is_root;
  const bool writes = call.kind != Collective::kReduce || is_root;
  const bool in_place = call.output.handle == call.input.handle;
  OwnedTensor dense_input;
  OwnedTensor dense_output;
  AtenTensorHandle src = call.input.handle;
  AtenTensorHandle dst = call.output.handle;
  if (!call.input.contiguous && reads) {
    dense_input = empty_like(call.input);
    copy_tensor(dense_input.get(), src);
    src = dense_input.get();
  }
  // The output first: a copy-on-write tensor that is both moves when it is asked for a pointer to write to.
  void* output = nullptr;
  if (writes && call.output.contiguous) output = mutable_data_of(dst);
  const void* input = reads ? data_of(src) : nullptr;
  if (writes && (!call.output.contiguous || (reads && !lie_well(call, input, output)))) {
    if (in_place && dense_input) {
      dst = dense_input.get();
    } else {
      dense_output = dense(call, call.out_rows);
      dst = dense_output.get();
    }
    output = mutable_data_of(dst);
  }
  const CollectiveCall ready = to_run(call, input, output, scope.stream());
  if (call.algorithm == Algorithm::kTorch) {
    Communicator& c = *call.communicator;
    RecordedCall record(c.recorder(), ready, c.world_size(), 0);
    torch_exchange(ready, src, dst, c.options());
    record.end(CallState::kDone);
  } else {
    call.communicator->run(ready);
  }
  if (writes && dst != call.output.handle && !(in_place && call.kind == Collective::kBroadcast && is_root)) {
    copy_tensor(call.output.handle, dst);
  }
}

void run_interruptible(const Exchange& call) {
  try {
    run_exchange(call);
  } catch (const std::exception&) {
    if (!take_interrupt_follows()) throw;
  }
}

OwnedTensor run_functional(Exchange& call) {
  OwnedTensor result = dense(call, call.out_rows);
  call.output = view_of_fresh(call.input, result);
  run_interruptible(call);
  // Only the root has the reduction; the others get back what they gave.
  if (call.kind == Collective::kReduce && call.root != call.communicator->rank()) {
    copy_tensor(result.get(), call.input.handle);
  }
  return result;
}

}  // namespace

namespace {

class ExchangePlanned final : public Plan {
 public:
  ExchangePlanned(const Exchange& call, OwnedTensor input, OwnedTensor output,
                  std::shared_ptr<Communicator> communicator)
      : Plan(std::move(communicator), std::move(input), std::move(output)), call_(call) {
    call_.input.handle = input_.get();
    call_.output.handle = is_in_place_ ? input_.get() : output_.get();
    call_.communicator = communicator_.get();
    set_short(std::max(call_.in_bytes, call_.out_bytes), call_.algorithm);
    is_direct_ = call_.input.contiguous && call_.output.contiguous && call_.algorithm != Algorithm::kTorch &&
                 lie_well(call_, input_data_, output_data_);
  }

  void run() override {
    check_open();
    check_unchanged();
    if (!is_direct_) return run_exchange(call_);
    const DeviceScope scope(call_.input.device_index);
    communicator_->run(to_run(call_, input_data_, output_data_, scope.stream()));
  }

  // Ranks know the sizes of their own pairs only: splits of an all-to-all are not among what they compare.
  std::string signature() const override {
    std::string parts;
    const size_t* splits = call_.kind == Collective::kAllGather ? call_.output_splits : call_.input_splits;
    if (call_.has_splits && call_.kind != Collective::kAllToAllV) {
      for (int p = 0; p < communicator_->world_size(); ++p) parts += concat(p == 0 ? "" : "+", splits[p]);
    } else {
      parts = call_.has_splits ? "splits of" : concat(call_.numel);
    }
    return concat(name_of(call_.kind), " of ", parts, " x ", name_of(call_.input.dtype),
                  reduces(call_.kind) ? concat(", reduce_op '", name_of(call_.op), "'") : "",
                  has_root(call_.kind) ? concat(", root ", call_.root) : "", ", algorithm '", name_of(call_.algorithm),
                  "'");
  }

 private:
  Exchange call_;
  bool is_direct_;
};

}  // namespace

void exchange_plan_create_kernel(StableIValue* stack, uint64_t, uint64_t) {
  ExchangeArguments arguments;
  arguments.input = own(stack[0]);
  arguments.out = own(stack[1]);
  arguments.kind = static_cast<Collective>(torch::stable::detail::to<int64_t>(stack[2]));
  arguments.reduce_op.emplace(stack[3]);
  arguments.root = torch::stable::detail::to<int64_t>(stack[4]);
  arguments.group.emplace(stack[5]);
  arguments.input_splits = IntList(stack[6]);
  arguments.output_splits = IntList(stack[7]);
  arguments.algorithm.emplace(stack[8]);
  const Exchange call = checked_exchange(arguments, Form::kOut);
  const int64_t id = store_plan(std::make_unique<ExchangePlanned>(
      call, std::move(arguments.input), std::move(arguments.out), share_communicator(arguments.group->str())));
  stack[0] = torch::stable::detail::from(id);
}

IntList::IntList(StableIValue value) : handle_(torch::stable::detail::to<StableListHandle>(value)) {
  check_shim(torch_list_size(handle_, &size_), "list size");
}
IntList::~IntList() {
  if (handle_ != nullptr) torch_delete_list(handle_);
}
int64_t IntList::operator[](size_t idx) const {
  StableIValue value{};
  check_shim(torch_list_get_item(handle_, idx, &value), "list item");
  return torch::stable::detail::to<int64_t>(value);
}
StableIValue IntList::release() {
  if (handle_ == nullptr) check_shim(torch_new_list_reserve_size(0, &handle_), "list");
  return torch::stable::detail::from(std::exchange(handle_, nullptr));
}

ExchangeArguments take_arguments(Collective kind, StableIValue* stack, bool has_out) {
  ExchangeArguments arguments;
  arguments.kind = kind;
  int at = 0;
  arguments.input = own(stack[at++]);
  if (has_root(kind)) arguments.root = torch::stable::detail::to<int64_t>(stack[at++]);
  if (reduces(kind)) arguments.reduce_op.emplace(stack[at++]);
  arguments.group.emplace(stack[at++]);
  if (kind == Collective::kReduceScatter || kind == Collective::kAllToAll) {
    arguments.input_splits = IntList(stack[at++]);
  }
  if (kind == Collective::kAllGather || kind == Collective::kAllToAll) arguments.output_splits = IntList(stack[at++]);
  arguments.algorithm.emplace(stack[at++]);
  if (has_out) arguments.out = own(stack[at++]);
  return arguments;
}

void announce(const ExchangeArguments& arguments, const char* what) {
  announce(CallText{"", 0, arguments.group->data(), arguments.group->length(), "", 0}, what);
}

template <Collective kind>
void exchange_kernel(StableIValue* stack, uint64_t, uint64_t) {
  const ExchangeArguments arguments = take_arguments(kind, stack, false);
  Exchange call = checked_exchange(arguments, Form::kFunctional);
  stack[0] = torch::stable::detail::from(run_functional(call).release());
}

template <Collective kind>
void exchange_out_kernel(StableIValue* stack, uint64_t, uint64_t) {
  constexpr Form kForm = has_root(kind) ? Form::kInPlace : Form::kOut;
  const ExchangeArguments arguments = take_arguments(kind, stack, kForm == Form::kOut);
  run_interruptible(checked_exchange(arguments, kForm));
}

void exchange_numbered_kernel(StableIValue* stack, uint64_t, uint64_t) {
  ExchangeArguments arguments;
  arguments.input = own(stack[0]);
  arguments.kind = static_cast<Collective>(torch::stable::detail::to<int64_t>(stack[1]));
  const auto op = static_cast<ReduceOp>(torch::stable::detail::to<int64_t>(stack[2]));
  arguments.root = torch::stable::detail::to<int64_t>(stack[3]);
  arguments.input_splits = IntList(stack[4]);
  arguments.output_splits = IntList(stack[5]);
  const auto algorithm = static_cast<Algorithm>(torch::stable::detail::to<int64_t>(stack[6]));
  const auto group_hash = static_cast<uint64_t>(torch::stable::detail::to<int64_t>(stack[7]));
  DeferredError* const deferred = DeferredError::current();
  try {
    Communicator& communicator = find_communicator(group_hash, deferred == nullptr ? nullptr : deferred->group_name());
    Exchange call{};
    try {
      call = checked_exchange(arguments, Form::kFunctional, op, algorithm, communicator);
    } catch (const std::exception& error) {
      if (communicator.options().debug && !communicator.closed()) communicator.announce_error(error.what());
      throw;
    }
    stack[0] = torch::stable::detail::from(run_functional(call).release());
  } catch (...) {
    if (deferred == nullptr) throw;
    deferred->store(std::current_exception());
    stack[0] = torch::stable::detail::from(empty_like(arguments.input.get()).release());
  }
}

#define LLC_INSTANTIATE(kind)                                                         \
  template void exchange_kernel<Collective::kind>(StableIValue*, uint64_t, uint64_t); \
  template void exchange_out_kernel<Collective::kind>(StableIValue*, uint64_t, uint64_t)
LLC_INSTANTIATE(kReduceScatter);
LLC_INSTANTIATE(kAllGather);
LLC_INSTANTIATE(kBroadcast);
LLC_INSTANTIATE(kReduce);
LLC_INSTANTIATE(kAllToAll);
#undef LLC_INSTANTIATE

}  // namespace llcoll
