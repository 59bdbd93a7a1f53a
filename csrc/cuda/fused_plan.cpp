#include "cuda/fused_plan.h"

#include <algorithm>

namespace llcoll {
namespace {

constexpr uint32_t kRowAlign = 16;  // rows start on whole units of every protocol
constexpr uint32_t kItems = 4;      // norm.cuh: units of a row that a thread can hold
// Beyond, the all-reduce with its own grid and the norm's kernel are faster (2 ranks in loopback: docs/fused.md).
constexpr uint64_t kMaxFusedBytes = 512 << 10;

bool aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % kRowAlign == 0; }

Message message_of(const void* input, void* output, uint64_t num_bytes, DType dtype, int unit_bytes) {
  return make_message(input, output, num_bytes, element_bytes(dtype), unit_bytes, aligned(input), aligned(output));
}

}  // namespace

FusedLaunch plan_fused_launch(const CollectiveCall& call, const NormCall& norm, int num_ranks, const CudaLayout& layout,
                              uint32_t max_channels) {
  FusedLaunch launch;
  // Bits do not depend on the protocol, so what has no kernel of its own may take a neighbour's.
  const bool two = call.algorithm == Algorithm::kTwoShotSentinel || call.algorithm == Algorithm::kTwoShotLl;
  const bool one = call.algorithm == Algorithm::kOneShotSentinel || call.algorithm == Algorithm::kOneShotLl;
  if (!one && !two) return launch;
  const uint64_t row_bytes = uint64_t{norm.num_columns} * element_bytes(call.dtype);
  if (row_bytes * norm.num_rows > kMaxFusedBytes) return launch;
  // LL's units are half as large: where a thread would hold several of a row, sentinel's are fewer and faster.
  const bool by_ll = call.algorithm == Algorithm::kOneShotLl && layout.wide_packets && row_bytes / 8 <= kMaxThreads;
  launch.protocol = by_ll ? kLl : kSentinel;
  const int unit_bytes = launch.protocol == kLl ? 8 : 16;
  if (row_bytes % kRowAlign != 0 || row_bytes / unit_bytes > uint64_t{kItems} * kMaxThreads) return launch;
  const auto upr = static_cast<uint32_t>(row_bytes / unit_bytes);
  // Several units a thread, each from several ranks: slower than two kernels at 4 ranks, not at 2.
  if (upr > kMaxThreads && num_ranks > 2) return launch;
  if (norm.num_rows * upr > (uint64_t{1} << 28)) return launch;  // unit numbers are 32 bits, padding included

  const ScratchShape& shape = layout.shape[launch.protocol];
  const uint32_t max_chunk =
      shape.slots_per_channel / push_regions(two ? 2 : 1, num_ranks) / kStrideUnits * kStrideUnits;
  uint32_t pieces = 1;  // epochs of a row, all alike
  while (pieces <= upr && (upr % pieces != 0 || upr / pieces > max_chunk)) ++pieces;
  if (pieces > upr || (two && pieces > 1)) return launch;

  // Each channel has the same number of rows, padded with rows that nobody writes: no epoch without data.
  const auto num_rows = static_cast<uint32_t>(norm.num_rows);
  const auto num_parts = static_cast<uint32_t>(two ? num_ranks : 1);
  const uint32_t rows_per_part = (num_rows + num_parts - 1) / num_parts;
  const uint32_t rows_per_channel = (rows_per_part + max_channels - 1) / max_channels;
  launch.num_channels = (rows_per_part + rows_per_channel - 1) / rows_per_channel;
  launch.num_threads = 32;
  while (launch.num_threads < upr && launch.num_threads < kMaxThreads) launch.num_threads *= 2;
  launch.cut = {launch.num_channels * rows_per_channel * upr, rows_per_channel * upr, upr / pieces,
                rows_per_channel * pieces};
  const FusedKey key{call.dtype, num_ranks, static_cast<int>((upr + launch.num_threads - 1) / launch.num_threads),
                     launch.cut.num_chunks == 1};
  if (two) {
    launch.kernel = find_fused_two_shot_sentinel(key);
  } else {
    launch.kernel = launch.protocol == kLl ? find_fused_one_shot_ll(key) : find_fused_one_shot_sentinel(key);
  }

  const uint64_t num_bytes = row_bytes * num_rows;
  launch.message = message_of(call.input, nullptr, num_bytes, call.dtype, unit_bytes);
  NormArgs& args = launch.norm;
  args.residual = message_of(norm.residual, norm.residual_out, num_bytes, call.dtype, unit_bytes);
  args.weight = message_of(norm.weight, nullptr, row_bytes, call.dtype, unit_bytes);
  args.output = message_of(nullptr, norm.output, num_bytes, call.dtype, unit_bytes);
  args.fp8 = static_cast<uint8_t*>(norm.output);
  args.scale = norm.scale;
  args.scales = norm.scales;
  args.num_rows = num_rows;
  args.units_per_row = upr;
  args.num_columns = norm.num_columns;
  args.eps = norm.eps;
  args.weight_bias = norm.weight_bias;
  args.kind = norm.kind;
  return launch;
}

}  // namespace llcoll
