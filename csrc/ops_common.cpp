#include "ops_common.h"

#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/version.h>

#include <array>

#include "check.h"
#include "ops_torch.h"

namespace llcoll {
namespace {

#ifdef USE_CUDA
constexpr const char* kDeviceName = "cuda";
int32_t own_device_type() { return aoti_torch_device_type_cuda(); }
#else
constexpr const char* kDeviceName = "cpu";
int32_t own_device_type() { return aoti_torch_device_type_cpu(); }
#endif

constexpr int kMaxDims = 64;  // torch's own limit
constexpr int kMaxTorchDTypes = 128;

// torch's numbers for dtypes are not stable across its versions, so they are asked for once, at load.
struct DTypeTable {
  std::array<int8_t, kMaxTorchDTypes> ours;
  std::array<int32_t, kNumDTypes> torchs;
  DTypeTable() {
    torchs = {aoti_torch_dtype_float32(),  aoti_torch_dtype_float64(),       aoti_torch_dtype_float16(),
              aoti_torch_dtype_bfloat16(), aoti_torch_dtype_float8_e4m3fn(), aoti_torch_dtype_float8_e5m2(),
              aoti_torch_dtype_int8(),     aoti_torch_dtype_uint8(),         aoti_torch_dtype_int32(),
              aoti_torch_dtype_int64(),    aoti_torch_dtype_bool()};
    ours.fill(-1);
    for (int i = 0; i < kNumDTypes; ++i) ours[torchs[i]] = static_cast<int8_t>(i);
  }
};
const DTypeTable dtypes;

const char* device_name(int32_t type) {
  if (type == aoti_torch_device_type_cpu()) return "cpu";
  if (type == aoti_torch_device_type_cuda()) return "cuda";
  return type == aoti_torch_device_type_meta() ? "meta" : "another type";
}

[[noreturn, gnu::cold]] void fail_dtype(const char* what, int32_t dtype) {
  std::string supported;
  for (int i = 0; i < kNumDTypes; ++i) supported += (i == 0 ? "" : ", ") + std::string(name_of(static_cast<DType>(i)));
  const char* name = torch::headeronly::toString(static_cast<torch::headeronly::ScalarType>(dtype));
  fail_with("unsupported dtype ", name, " of ", what, "; supported are ", supported);
}

}  // namespace

TensorView checked_view(AtenTensorHandle tensor, const char* what) {
  int32_t dtype = 0;
  int32_t device_type = 0;
  int32_t layout = 0;
  int64_t numel = 0;
  TensorView view{tensor, 0, DType::kFloat32, 0, false};
  check_shim(aoti_torch_get_dtype(tensor, &dtype), "dtype");
  if (dtype < 0 || dtype >= kMaxTorchDTypes || dtypes.ours[dtype] < 0) fail_dtype(what, dtype);
  view.dtype = static_cast<DType>(dtypes.ours[dtype]);
  check_shim(aoti_torch_get_device_type(tensor, &device_type), "device");
  check_that(device_type == own_device_type(), what, " is on ", device_name(device_type), ", but the call runs on ",
             kDeviceName);
  check_shim(aoti_torch_get_device_index(tensor, &view.device_index), "device index");
  check_shim(aoti_torch_get_layout(tensor, &layout), "layout");
  check_that(layout == aoti_torch_layout_strided(), what, " has a sparse or opaque layout; it must be strided");
  check_shim(aoti_torch_get_numel(tensor, &numel), "numel");
  view.numel = static_cast<size_t>(numel);
  check_shim(aoti_torch_is_contiguous(tensor, &view.contiguous), "is_contiguous");
  return view;
}

Shape shape_of(AtenTensorHandle tensor) {
  Shape shape;
  check_shim(aoti_torch_get_dim(tensor, &shape.num_dims), "dim");
  check_shim(aoti_torch_get_sizes(tensor, &shape.sizes), "sizes");
  return shape;
}

std::string shape_text(const Shape& shape) {
  std::string text = "[";
  for (int64_t d = 0; d < shape.num_dims; ++d) text += (d == 0 ? "" : ", ") + std::to_string(shape.sizes[d]);
  return text + "]";
}

void check_writable(const TensorView& view, const char* what) {
  if (view.contiguous) return;
  const Shape shape = shape_of(view.handle);
  int64_t* strides = nullptr;
  check_shim(aoti_torch_get_strides(view.handle, &strides), "strides");
  for (int64_t d = 0; d < shape.num_dims; ++d) {
    check_that(shape.sizes[d] <= 1 || strides[d] != 0, what, " of shape ", shape_text(shape),
               " has stride 0 in dimension ", d,
               " (an expanded tensor): its elements share memory and cannot be written; use its clone()");
  }
}

namespace {

void check_out(const TensorView& input, const TensorView& output) {
  check_that(output.dtype == input.dtype, "out has dtype ", name_of(output.dtype), ", input has ",
             name_of(input.dtype));
  check_that(output.device_index == input.device_index, "out is on ", kDeviceName, ":", output.device_index,
             ", input on ", kDeviceName, ":", input.device_index);
  const Shape in = shape_of(input.handle);
  const Shape out = shape_of(output.handle);
  bool same = in.num_dims == out.num_dims;
  for (int64_t d = 0; same && d < in.num_dims; ++d) same = in.sizes[d] == out.sizes[d];
  check_that(same, "out has shape ", shape_text(out), ", input has ", shape_text(in));
}

struct Parsed {
  ReduceOp op;
  Algorithm requested;
  Communicator* communicator;
};

Parsed parse(const CallText& text) {
  const ReduceOp op = parse_reduce_op(text.reduce_op, text.reduce_op_length);
  const Algorithm requested = parse_algorithm(text.algorithm, text.algorithm_length);
  return {op, requested, &find_communicator(text.group_name, text.group_name_length)};
}

template <class Parse>
Checked check_in_order(AtenTensorHandle input, AtenTensorHandle output, Form form, Parse parse_rest) {
  Checked call;
  call.input = checked_view(input, "input");
  if (form == Form::kOut) call.output = checked_view(output, "out");
  const Parsed parsed = parse_rest();
  call.op = parsed.op;
  call.communicator = parsed.communicator;
#ifdef USE_CUDA
  const int32_t device_index = call.communicator->options().device_index;
  check_that(call.input.device_index == device_index, "input is on cuda:", call.input.device_index,
             ", the group's communicator on cuda:", device_index);
#endif
  check_that(call.input.dtype != DType::kBool || call.op != ReduceOp::kAvg, "reduce_op 'avg' has no meaning for bool");
  call.algorithm =
      call.communicator->resolve(Collective::kAllReduce, call.input.numel, call.input.dtype, call.op, parsed.requested);
  if (form == Form::kOut) check_out(call.input, call.output);
  if (form == Form::kInPlace) call.output = call.input;
  if (form == Form::kFunctional) {
    call.output = call.input;
    call.output.handle = nullptr;
  } else {
    check_writable(call.output, form == Form::kOut ? "out" : "input");
  }
  return call;
}

[[gnu::cold]] void announce_to(Communicator& communicator, const char* what) {
  if (communicator.options().debug && !communicator.closed()) communicator.announce_error(what);
}

// Two contiguous ranges that share some bytes but do not start together.
bool overlaps_partly(const void* a, const void* b, size_t num_bytes) {
  const auto x = reinterpret_cast<uintptr_t>(a);
  const auto y = reinterpret_cast<uintptr_t>(b);
  return x != y && x < y + num_bytes && y < x + num_bytes;
}

OwnedTensor empty_strided(const Shape& shape, int32_t dtype, int32_t device_type, int32_t device_index) {
  int64_t strides[kMaxDims];
  check_that(shape.num_dims <= kMaxDims, "a tensor of ", shape.num_dims, " dimensions; at most ", kMaxDims);
  int64_t stride = 1;
  for (int64_t d = shape.num_dims - 1; d >= 0; --d) {
    strides[d] = stride;
    stride *= shape.sizes[d] > 1 ? shape.sizes[d] : 1;
  }
  AtenTensorHandle result = nullptr;
  check_shim(aoti_torch_empty_strided(shape.num_dims, shape.sizes, strides, dtype, device_type, device_index, &result),
             "allocation of the result");
  return OwnedTensor(result);
}

}  // namespace

void check_shim(AOTITorchError error, const char* step) {
  if (error != 0) [[unlikely]]
    fail_with("torch failed in: ", step, " (its own message is on stderr)");
}

const void* data_of(AtenTensorHandle tensor) {
  const void* data = nullptr;
  check_shim(torch_get_const_data_ptr(tensor, &data), "data pointer");
  return data;
}

void* mutable_data_of(AtenTensorHandle tensor) {
  void* data = nullptr;
  check_shim(torch_get_mutable_data_ptr(tensor, &data), "data pointer");
  return data;
}

void copy_tensor(AtenTensorHandle dst, AtenTensorHandle src) {
  const NoGrad guard;
  check_shim(aoti_torch_copy_(dst, src, 0), "copy");
}

void announce(const CallText& text, const char* what) {
  try {
    announce_to(find_communicator(text.group_name, text.group_name_length), what);
  } catch (const std::exception&) {
    // The first error is the one to report.
  }
}

Checked check_all_reduce(AtenTensorHandle input, AtenTensorHandle output, Form form, const CallText& text) {
  try {
    return check_in_order(input, output, form, [&] { return parse(text); });
  } catch (const std::exception& error) {
    announce(text, error.what());
    throw;
  }
}

Checked check_all_reduce(AtenTensorHandle input, ReduceOp op, Algorithm requested, uint64_t group_hash,
                         const char* group_name) {
  Communicator& communicator = find_communicator(group_hash, group_name);
  try {
    return check_in_order(input, nullptr, Form::kFunctional, [&] { return Parsed{op, requested, &communicator}; });
  } catch (const std::exception& error) {
    announce_to(communicator, error.what());
    throw;
  }
}

OwnedTensor empty_like(const TensorView& view) {
  return empty_strided(shape_of(view.handle), dtypes.torchs[static_cast<int>(view.dtype)], own_device_type(),
                       view.device_index);
}

OwnedTensor empty_rows(const TensorView& like, int64_t num_rows) {
  const Shape shape = shape_of(like.handle);
  check_that(shape.num_dims <= kMaxDims, "a tensor of ", shape.num_dims, " dimensions; at most ", kMaxDims);
  int64_t sizes[kMaxDims] = {num_rows};
  for (int64_t d = 1; d < shape.num_dims; ++d) sizes[d] = shape.sizes[d];
  return empty_strided({shape.num_dims == 0 ? 1 : shape.num_dims, sizes}, dtypes.torchs[static_cast<int>(like.dtype)],
                       own_device_type(), like.device_index);
}

OwnedTensor empty_like(AtenTensorHandle handle) {
  int32_t dtype = 0;
  int32_t device_type = 0;
  int32_t device_index = 0;
  check_shim(aoti_torch_get_dtype(handle, &dtype), "dtype");
  check_shim(aoti_torch_get_device_type(handle, &device_type), "device");
  check_shim(aoti_torch_get_device_index(handle, &device_index), "device index");
  return empty_strided(shape_of(handle), dtype, device_type, device_index);
}

TensorView view_of_fresh(const TensorView& like, const OwnedTensor& tensor) {
  return {tensor.get(), like.numel, like.dtype, like.device_index, true};
}

void run_all_reduce(const Checked& call) {
  if (call.input.numel == 0) return;
  const DeviceScope scope(call.input.device_index);
  const size_t num_bytes = call.input.numel * element_bytes(call.input.dtype);
  OwnedTensor dense_input;
  OwnedTensor dense_output;
  AtenTensorHandle src = call.input.handle;
  AtenTensorHandle dst = call.output.handle;
  if (!call.input.contiguous) {
    dense_input = empty_like(call.input);
    copy_tensor(dense_input.get(), src);
    src = dense_input.get();
  }
  // The output first: a copy-on-write tensor that is both moves when it is asked for a pointer to write to.
  void* output = call.output.contiguous ? mutable_data_of(dst) : nullptr;
  const void* input = data_of(src);
  if (output == nullptr || overlaps_partly(input, output, num_bytes)) {
    if (!dense_input) dense_output = empty_like(call.output);
    dst = dense_input ? dense_input.get() : dense_output.get();
    output = mutable_data_of(dst);
  }
  if (call.algorithm == Algorithm::kTorch) {
    if (output != input) copy_tensor(dst, src);
    Communicator& c = *call.communicator;
    RecordedCall record(c.recorder(),
                        {input, output, call.input.numel, call.input.dtype, call.op, call.algorithm, nullptr},
                        c.world_size(), 0);
    torch_all_reduce(dst, call.input.dtype, call.op, c.options());
    record.end(CallState::kDone);
  } else {
    call.communicator->run(
        {input, output, call.input.numel, call.input.dtype, call.op, call.algorithm, scope.stream()});
  }
  if (dst != call.output.handle) copy_tensor(call.output.handle, dst);
}

}  // namespace llcoll
