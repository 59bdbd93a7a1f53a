// The norm alone: one CTA for each row, of any length and alignment, in the order of llcoll/rms_norm.h.
#include "check.h"
#include "cuda/cuda_check.h"
#include "cuda/norm.cuh"

namespace llcoll {
namespace {

using Unit = Bytes<16>;
// Values behind the warps' trees: rows of up to 512 KiB.
constexpr uint32_t kMaxBoard = 1024;
constexpr uint32_t kMaxUnits = 32 * kMaxBoard;

struct RowArgs {
  const char* input;
  NormArgs norm;  // messages of one row: their pointers and limits are the first row's
  uint32_t row_bytes;
  bool has_residual;
};

// Units beyond whole ones go element by element, as a message's tail does.
template <class Type>
__device__ Unit read_row(const DeviceMemory& mem, const char* row, uint32_t u, const RowArgs& args, bool whole) {
  const Message message{row, nullptr, args.row_bytes, whole ? args.row_bytes / Unit::kBytes : 0, 0, 4 / Type::kPerWord};
  return message.read<Unit>(mem, u);
}
__device__ void write_row(const DeviceMemory& mem, char* row, uint32_t u, const RowArgs& args, bool whole,
                          uint32_t element_bytes, Unit value) {
  const Message message{nullptr, row, args.row_bytes, 0, whole ? args.row_bytes / Unit::kBytes : 0, element_bytes};
  message.write(mem, u, value);
}

template <class Type>
__global__ void __launch_bounds__(kMaxThreads) rms_norm_kernel(const __grid_constant__ RowArgs args) {
  constexpr int kElements = Unit::kWords * Type::kPerWord;
  constexpr uint32_t kElementBytes = 4 / Type::kPerWord;
  __shared__ float board[kMaxBoard];
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
  const DeviceWait nobody{};
  const DeviceMemory mem{nobody};
  const NormArgs& norm = args.norm;
  const uint32_t row = blockIdx.x;
  const uint64_t offset = uint64_t{row} * args.row_bytes;
  auto is_whole = [&](const char* at) { return mem.can_access<Unit>(at); };
  const char* input = args.input + offset;
  const char* residual = args.has_residual ? norm.residual.input + offset : nullptr;
  char* residual_out = args.has_residual ? norm.residual.output + offset : nullptr;
  const char* rows = args.has_residual ? residual_out : input;  // a thread reads back what it wrote itself
  const bool whole_input = is_whole(input), whole_residual = is_whole(residual), whole_out = is_whole(residual_out);
  const bool whole_rows = is_whole(rows), whole_weight = is_whole(norm.weight.input);
  const uint32_t num_warps = blockDim.x / 32;
  uint32_t items = 1;  // a power of two, so that the board is the next levels of the tree
  while (items * blockDim.x < norm.units_per_row) items *= 2;
  for (uint32_t k = 0; k < items; ++k) {
    const uint32_t u = k * blockDim.x + threadIdx.x;
    float square = 0;
    if (u < norm.units_per_row) {
      Unit r = read_row<Type>(mem, input, u, args, whole_input);
      if (args.has_residual) {
        r = add_units<Type>(r, read_row<Type>(mem, residual, u, args, whole_residual));
        write_row(mem, residual_out, u, args, whole_out, kElementBytes, r);
      }
      square = sum_of_squares<Type>(r);
    }
    square = warp_tree_sum(square);
    if (threadIdx.x % 32 == 0) board[k * num_warps + threadIdx.x / 32] = square;
  }
  __syncthreads();
  for (uint32_t n = items * num_warps / 2; n > 0; n /= 2) {
    float sums[kMaxBoard / 2 / 32];  // the fewest threads
    for (uint32_t i = threadIdx.x, k = 0; i < n; i += blockDim.x, ++k) sums[k] = board[2 * i] + board[2 * i + 1];
    __syncthreads();
    for (uint32_t i = threadIdx.x, k = 0; i < n; i += blockDim.x, ++k) board[i] = sums[k];
    __syncthreads();
  }
  const float scale = inverse_root(board[0], norm.num_columns, norm.eps);
  float largest = 0;
  auto norm_of = [&](uint32_t u, float(&y)[kElements]) {
    const Unit r = read_row<Type>(mem, rows, u, args, whole_rows);
    norm_unit<Type>(r, read_row<Type>(mem, norm.weight.input, u, args, whole_weight), scale, norm.weight_bias, y);
  };
  float divisor = 1;
  if (norm.kind == NormOutput::kFp8) divisor = *norm.scale;
  if (norm.kind == NormOutput::kFp8PerRow) {
    for (uint32_t u = threadIdx.x; u < norm.units_per_row; u += blockDim.x) {
      float y[kElements];
      norm_of(u, y);
      for (int e = 0; e < kElements; ++e) {
        if (u * kElements + e < norm.num_columns) largest = fmaxf(largest, fabsf(y[e]));
      }
    }
    __syncthreads();  // the board is read above
    largest = warp_max(largest);
    if (threadIdx.x % 32 == 0) board[threadIdx.x / 32] = largest;
    __syncthreads();
    divisor = row_scale(warp_max(threadIdx.x % 32 < num_warps ? board[threadIdx.x % 32] : 0.0f));
    if (threadIdx.x == 0) norm.scales[row] = divisor;
  }
  char* output = norm.output.output + offset;
  const bool whole_output = is_whole(output);
  for (uint32_t u = threadIdx.x; u < norm.units_per_row; u += blockDim.x) {
    float y[kElements];
    norm_of(u, y);
    if (norm.kind == NormOutput::kSame) {
      Unit out{};
      for (int e = 0; e < kElements; ++e) {
        out.words[e / Type::kPerWord] |= Type::template pack<uint32_t>(y[e], e % Type::kPerWord);
      }
      write_row(mem, output, u, args, whole_output, kElementBytes, out);
    } else {
      uint8_t* at = norm.fp8 + uint64_t{row} * norm.num_columns;
      for (int e = 0; e < kElements; ++e) {
        const uint32_t column = u * kElements + e;
        if (column < norm.num_columns) at[column] = static_cast<uint8_t>(fp8_of(y[e], divisor));
      }
    }
  }
}

}  // namespace

void run_rms_norm(const NormCall& call) {
  RowArgs args{};
  args.input = static_cast<const char*>(call.input);
  args.row_bytes = call.num_columns * static_cast<uint32_t>(element_bytes(call.dtype));
  args.has_residual = call.residual != nullptr;
  NormArgs& norm = args.norm;
  norm.residual.input = static_cast<const char*>(call.residual);
  norm.residual.output = static_cast<char*>(call.residual_out);
  norm.weight.input = static_cast<const char*>(call.weight);
  norm.output.output = static_cast<char*>(call.output);
  norm.fp8 = static_cast<uint8_t*>(call.output);
  norm.scale = call.scale;
  norm.scales = call.scales;
  norm.num_rows = static_cast<uint32_t>(call.num_rows);
  norm.units_per_row = (args.row_bytes + Unit::kBytes - 1) / Unit::kBytes;
  norm.num_columns = call.num_columns;
  norm.eps = call.eps;
  norm.weight_bias = call.weight_bias;
  norm.kind = call.kind;
  check_that(norm.units_per_row <= kMaxUnits, "a row of ", args.row_bytes, " bytes; at most ", kMaxUnits * Unit::kBytes,
             " on CUDA");
  check_that(call.num_rows <= 0x7FFFFFFF, call.num_rows, " rows; at most ", 0x7FFFFFFF);
  uint32_t num_threads = 32;
  while (num_threads < norm.units_per_row && num_threads < kMaxThreads) num_threads *= 2;
  const auto grid = static_cast<unsigned>(call.num_rows);
  auto* stream = static_cast<cudaStream_t>(call.stream);
  switch (call.dtype) {
    case DType::kFloat32:
      rms_norm_kernel<Float32><<<grid, num_threads, 0, stream>>>(args);
      break;
    case DType::kFloat16:
      rms_norm_kernel<Float16><<<grid, num_threads, 0, stream>>>(args);
      break;
    default:
      rms_norm_kernel<BFloat16><<<grid, num_threads, 0, stream>>>(args);
  }
  check_cuda(cudaGetLastError(), "rms_norm");
}

}  // namespace llcoll
