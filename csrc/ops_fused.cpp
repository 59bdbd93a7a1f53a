#include "ops_fused.h"

#include <cmath>

#include "check.h"
#include "norm_call.h"

namespace llcoll {
namespace {

using torch::stable::detail::to;

// A contiguous version of a tensor, which it keeps alive.
class Dense {
 public:
  explicit Dense(const TensorView& view) {
    if (!view.contiguous) {
      copy_ = empty_like(view);
      copy_tensor(copy_.get(), view.handle);
    }
    data_ = data_of(copy_ ? copy_.get() : view.handle);
  }
  const void* data() const { return data_; }

 private:
  OwnedTensor copy_;
  const void* data_;
};

// What the ops have in common, checked.
struct NormArguments {
  TensorView input;
  TensorView weight;
  size_t num_columns;
  float eps;
  float weight_bias;
};

NormArguments check_norm(AtenTensorHandle input, AtenTensorHandle weight, double eps, double weight_bias) {
  NormArguments norm{};
  norm.input = checked_view(input, "input");
  norm.weight = checked_view(weight, "weight");
  const DType dtype = norm.input.dtype;
  check_that(dtype == DType::kFloat32 || dtype == DType::kFloat16 || dtype == DType::kBFloat16,
             "a norm takes float32, float16 or bfloat16, not ", name_of(dtype));
  const Shape shape = shape_of(input);
  check_that(shape.num_dims > 0 && shape.sizes[shape.num_dims - 1] > 0, "input has shape ", shape_text(shape),
             "; a norm needs a last dimension that is not empty");
  const int64_t columns = shape.sizes[shape.num_dims - 1];
  check_that(columns <= (int64_t{1} << 24), "input has rows of ", columns, " elements; at most ", int64_t{1} << 24);
  const Shape of_weight = shape_of(weight);
  check_that(of_weight.num_dims == 1 && of_weight.sizes[0] == columns, "weight has shape ", shape_text(of_weight),
             ", the input's rows have ", columns, " elements");
  check_that(norm.weight.dtype == dtype, "weight has dtype ", name_of(norm.weight.dtype), ", input has ",
             name_of(dtype));
  check_that(norm.weight.device_index == norm.input.device_index, "weight and input are on different devices");
  check_that(std::isfinite(eps) && eps >= 0, "eps is ", eps, "; it must be 0 or more");
  norm.num_columns = static_cast<size_t>(columns);
  norm.eps = static_cast<float>(eps);
  norm.weight_bias = static_cast<float>(weight_bias);
  return norm;
}

TensorView check_residual(AtenTensorHandle residual, const TensorView& input) {
  const TensorView view = checked_view(residual, "residual");
  const Shape mine = shape_of(residual);
  const Shape wanted = shape_of(input.handle);
  bool same = mine.num_dims == wanted.num_dims;
  for (int64_t d = 0; same && d < mine.num_dims; ++d) same = mine.sizes[d] == wanted.sizes[d];
  check_that(same, "residual has shape ", shape_text(mine), ", input has ", shape_text(wanted));
  check_that(view.dtype == input.dtype, "residual has dtype ", name_of(view.dtype), ", input has ",
             name_of(input.dtype));
  check_that(view.device_index == input.device_index, "residual and input are on different devices");
  return view;
}

NormCall call_of(const NormArguments& norm, const DeviceScope& scope) {
  NormCall call{};
  call.num_columns = static_cast<uint32_t>(norm.num_columns);
  call.num_rows = norm.input.numel / norm.num_columns;
  call.dtype = norm.input.dtype;
  call.eps = norm.eps;
  call.weight_bias = norm.weight_bias;
  call.device_index = norm.input.device_index;
  call.stream = scope.stream();
  return call;
}

OwnedTensor empty_fp8(const TensorView& like) {
  TensorView view = like;
  view.dtype = DType::kFloat8E4M3;
  return empty_like(view);
}

// One scale for each row: the input's shape with a last dimension of 1.
OwnedTensor empty_scales(const TensorView& input) {
  const Shape shape = shape_of(input.handle);
  int64_t sizes[64] = {};
  int64_t strides[64] = {};
  int64_t stride = 1;
  for (int64_t d = shape.num_dims - 1; d >= 0; --d) {
    sizes[d] = d == shape.num_dims - 1 ? 1 : shape.sizes[d];
    strides[d] = stride;
    stride *= sizes[d] > 1 ? sizes[d] : 1;
  }
  int32_t device_type = 0;
  check_shim(aoti_torch_get_device_type(input.handle, &device_type), "device");
  AtenTensorHandle result = nullptr;
  check_shim(aoti_torch_empty_strided(shape.num_dims, sizes, strides, aoti_torch_dtype_float32(), device_type,
                                      input.device_index, &result),
             "allocation of the scales");
  return OwnedTensor(result);
}

// The arguments of an all-reduce fused with a norm, out of torch's stack.
struct FusedArguments {
  OwnedTensor input;
  OwnedTensor residual;
  OwnedTensor weight;
  OwnedTensor scale;  // null unless `kind` is kFp8
  NormOutput kind;
  double eps;
  StableString group;
  double weight_bias;
  StableString algorithm;
};

FusedArguments take(StableIValue* stack, NormOutput kind) {
  int i = 0;
  OwnedTensor input = own(stack[i++]);
  OwnedTensor residual = own(stack[i++]);
  OwnedTensor weight = own(stack[i++]);
  OwnedTensor scale;
  if (kind == NormOutput::kFp8) scale = own(stack[i++]);
  const auto eps = to<double>(stack[i++]);
  StableString group(stack[i++]);
  const auto weight_bias = to<double>(stack[i++]);
  StableString algorithm(stack[i++]);
  return {std::move(input), std::move(residual), std::move(weight),   std::move(scale), kind, eps,
          std::move(group), weight_bias,         std::move(algorithm)};
}

struct FusedResult {
  OwnedTensor output;
  OwnedTensor residual_out;
  OwnedTensor scales;
};

FusedResult run_fused(const FusedArguments& arguments) {
  static constexpr char kSum[] = "sum";
  const CallText text{kSum,
                      sizeof(kSum) - 1,
                      arguments.group.data(),
                      arguments.group.length(),
                      arguments.algorithm.data(),
                      arguments.algorithm.length()};
  NormArguments norm{};
  TensorView residual{};
  const float* scale = nullptr;
  try {
    norm = check_norm(arguments.input.get(), arguments.weight.get(), arguments.eps, arguments.weight_bias);
    residual = check_residual(arguments.residual.get(), norm.input);
    if (arguments.kind == NormOutput::kFp8) {
      const TensorView view = checked_view(arguments.scale.get(), "scale");
      check_that(view.dtype == DType::kFloat32 && view.numel == 1, "scale must be one float32, has ", view.numel,
                 " elements of ", name_of(view.dtype));
      check_that(view.device_index == norm.input.device_index, "scale and input are on different devices");
      scale = static_cast<const float*>(data_of(arguments.scale.get()));
    }
  } catch (const std::exception& error) {
    announce(text, error.what());
    throw;
  }
  FusedResult result;
  result.residual_out = empty_like(norm.input);
  Checked call = check_all_reduce(arguments.input.get(), result.residual_out.get(), Form::kOut, text);
  result.output = arguments.kind == NormOutput::kSame ? empty_like(norm.input) : empty_fp8(norm.input);
  if (arguments.kind == NormOutput::kFp8PerRow) result.scales = empty_scales(norm.input);
  if (call.input.numel == 0) return result;
  const DeviceScope scope(norm.input.device_index);
  const Dense dense_residual(residual);
  const Dense dense_weight(norm.weight);
  NormCall fused = call_of(norm, scope);
  fused.kind = arguments.kind;
  fused.residual = dense_residual.data();
  fused.weight = dense_weight.data();
  fused.residual_out = mutable_data_of(result.residual_out.get());
  fused.input = fused.residual_out;
  fused.output = mutable_data_of(result.output.get());
  fused.scale = scale;
  if (result.scales) fused.scales = static_cast<float*>(mutable_data_of(result.scales.get()));
  try {
    if (call.algorithm != Algorithm::kTorch) {
      const Dense dense_input(call.input);
      const CollectiveCall reduce{dense_input.data(), fused.residual_out, call.input.numel, call.input.dtype, call.op,
                                  call.algorithm,     scope.stream()};
      if (call.communicator->try_run_fused(reduce, fused)) return result;
      call.communicator->run(reduce);
    } else {
      run_all_reduce(call);
    }
    run_rms_norm(fused);
  } catch (const std::exception&) {
    if (!take_interrupt_follows()) throw;
  }
  return result;
}

void norm_kernel(StableIValue* stack, bool has_residual) {
  int i = 0;
  const OwnedTensor input = own(stack[i++]);
  OwnedTensor residual;
  if (has_residual) residual = own(stack[i++]);
  const OwnedTensor weight = own(stack[i++]);
  const auto eps = to<double>(stack[i++]);
  const auto weight_bias = to<double>(stack[i++]);
  const NormArguments norm = check_norm(input.get(), weight.get(), eps, weight_bias);
  TensorView view{};
  if (has_residual) view = check_residual(residual.get(), norm.input);
  OwnedTensor output = empty_like(norm.input);
  OwnedTensor residual_out;
  if (has_residual) residual_out = empty_like(norm.input);
  if (norm.input.numel != 0) {
    const DeviceScope scope(norm.input.device_index);
    const Dense dense_input(norm.input);
    const Dense dense_weight(norm.weight);
    NormCall call = call_of(norm, scope);
    call.input = dense_input.data();
    call.weight = dense_weight.data();
    call.output = mutable_data_of(output.get());
    if (has_residual) {
      const Dense dense_residual(view);
      call.residual = dense_residual.data();
      call.residual_out = mutable_data_of(residual_out.get());
      run_rms_norm(call);
    } else {
      run_rms_norm(call);
    }
  }
  stack[0] = torch::stable::detail::from(output.release());
  if (has_residual) stack[1] = torch::stable::detail::from(residual_out.release());
}

}  // namespace

void rms_norm_kernel(StableIValue* stack, uint64_t, uint64_t) { norm_kernel(stack, false); }
void add_rms_norm_kernel(StableIValue* stack, uint64_t, uint64_t) { norm_kernel(stack, true); }

void all_reduce_rms_norm_kernel(StableIValue* stack, uint64_t, uint64_t) {
  FusedResult result = run_fused(take(stack, NormOutput::kSame));
  stack[0] = torch::stable::detail::from(result.output.release());
  stack[1] = torch::stable::detail::from(result.residual_out.release());
}

void all_reduce_rms_norm_fp8_kernel(StableIValue* stack, uint64_t, uint64_t) {
  FusedResult result = run_fused(take(stack, NormOutput::kFp8));
  stack[0] = torch::stable::detail::from(result.output.release());
  stack[1] = torch::stable::detail::from(result.residual_out.release());
}

void all_reduce_rms_norm_dynamic_fp8_kernel(StableIValue* stack, uint64_t, uint64_t) {
  FusedResult result = run_fused(take(stack, NormOutput::kFp8PerRow));
  stack[0] = torch::stable::detail::from(result.output.release());
  stack[1] = torch::stable::detail::from(result.residual_out.release());
  stack[2] = torch::stable::detail::from(result.scales.release());
}

}  // namespace llcoll
