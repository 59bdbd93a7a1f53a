#include "cuda/line_plan.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>

namespace llcoll {
namespace {

constexpr uint32_t kMaxLineChannels = 64;
constexpr uint32_t kMinLines = 4;  // a warp
constexpr uint32_t kGoodLines = 16;

// Units of a part that fit one epoch of one channel; 0: not even one line.
uint32_t largest_chunk(const ScratchShape& shape, const Tile& tile, uint32_t unit_bytes) {
  // Below both bounds of fits_lines; then down to what the last, partial tile costs.
  uint32_t chunk = shape.slots_per_channel * 16 / unit_bytes / shape.num_ranks / kLineParts * kLineParts;
  while (chunk > 0 && !fits_lines(shape, chunk, tile, unit_bytes)) chunk -= kLineParts;
  return chunk;
}

bool has_room(const ScratchShape& shape, uint32_t lines) {
  return largest_chunk(shape, Tile(lines, LineFormat<Float32, false>::kPerLine), 16) >= kLineParts;
}

bool aligned(const void* pointer, uint32_t bytes) { return reinterpret_cast<uintptr_t>(pointer) % bytes == 0; }

}  // namespace

bool lines_stay_whole(int device, const char* uuid) {
  int num_devices = 0;
  if (cudaGetDeviceCount(&num_devices) != cudaSuccess) return false;
  for (int other = 0; other < num_devices; ++other) {
    cudaDeviceProp properties{};
    if (cudaGetDeviceProperties(&properties, other) != cudaSuccess) return false;
    if (std::memcmp(properties.uuid.bytes, uuid, sizeof(properties.uuid.bytes)) != 0) continue;
    if (other == device) return true;
    int native_atomics = 0;  // NVLink's mark: PCIe has no atomics between GPUs
    return cudaDeviceGetP2PAttribute(&native_atomics, cudaDevP2PAttrNativeAtomicSupported, device, other) ==
               cudaSuccess &&
           native_atomics != 0;
  }
  return false;
}

ScratchShape plan_line_scratch(uint64_t bytes, uint32_t max_channels, int num_ranks) {
  constexpr uint32_t kBuffers = Ll128<void>::kBuffers;
  for (const uint32_t lines : {kGoodLines, kMinLines}) {
    for (uint32_t channels = std::min(kMaxLineChannels, max_channels); channels > 0; channels /= 2) {
      const uint64_t slots = std::min<uint64_t>(bytes / kBuffers / channels / sizeof(LinePart), kMaxLineSlots) /
                             kStrideUnits * kStrideUnits;
      const ScratchShape shape =
          make_shape(static_cast<uint32_t>(slots), channels, kBuffers, sizeof(LinePart), 0, num_ranks);
      if (has_room(shape, lines)) return shape;
    }
  }
  return make_shape(0, 0, kBuffers, sizeof(LinePart), 0, num_ranks);
}

LaunchPlan plan_line_launch(const CollectiveCall& call, int num_ranks, const CudaLayout& layout,
                            uint32_t max_channels) {
  const ScratchShape& shape = layout.shape[kLl128];
  const bool halves = call.dtype != DType::kFloat32;
  const bool wide = halves && !layout.low_precision;
  const uint32_t per_line = halves && !wide ? 64 : 32;
  const uint32_t unit_bytes = wide ? 8 : 16;
  const uint64_t bytes = call.numel * element_bytes(call.dtype);
  const uint64_t units = (bytes + unit_bytes - 1) / unit_bytes;
  const uint32_t part = static_cast<uint32_t>((units + num_ranks - 1) / num_ranks);
  const uint32_t channels = std::min(max_channels, shape.num_channels);
  // Small tiles spread over more SMs, large ones waste fewer lines.
  Tile tile(kMinLines, per_line);
  uint32_t chunk = largest_chunk(shape, tile, unit_bytes);
  for (const uint32_t lines : {16u, 32u, static_cast<uint32_t>(kMaxTileLines)}) {
    const Tile larger(lines, per_line);
    const uint32_t larger_chunk = largest_chunk(shape, larger, unit_bytes);
    if (larger_chunk < larger.units() || part <= tile.units() * (lines > kGoodLines ? channels : 1)) break;
    tile = larger;
    chunk = larger_chunk;
  }
  LaunchPlan plan{};
  plan.protocol = kLl128;
  plan.num_threads = tile.lines * kLineParts;
  plan.num_channels = std::clamp<uint32_t>((part + tile.units() - 1) / tile.units(), 1, channels);
  plan.cut = make_plan(units, num_ranks, plan.num_channels, chunk);
  while (plan.num_channels > 1 && has_idle_epoch(plan.cut, plan.num_channels)) {
    plan.cut = make_plan(units, num_ranks, --plan.num_channels, chunk);
  }
  plan.kernel = find_two_shot_ll128({call.dtype, call.op, num_ranks, false, wide});
  plan.message = make_message(call.input, call.output, bytes, element_bytes(call.dtype), static_cast<int>(unit_bytes),
                              aligned(call.input, unit_bytes), aligned(call.output, unit_bytes));
  return plan;
}

}  // namespace llcoll
