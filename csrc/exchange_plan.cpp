#include "exchange_plan.h"

#include <algorithm>

#include "check.h"

namespace llcoll {
namespace {

bool reduces(Collective kind) { return kind == Collective::kReduceScatter || kind == Collective::kReduce; }
bool gathers(Collective kind) { return kind == Collective::kAllGather || kind == Collective::kBroadcast; }
bool has_root(Collective kind) { return kind == Collective::kReduce || kind == Collective::kBroadcast; }

uint64_t nan_word(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return 0x7FC000007FC00000u;
    case DType::kFloat64:
      return 0x7FF8000000000000u;
    case DType::kFloat16:
      return 0x7E007E007E007E00u;
    case DType::kBFloat16:
      return 0x7FC07FC07FC07FC0u;
    case DType::kFloat8E4M3:
    case DType::kFloat8E5M2:
      return 0x7F7F7F7F7F7F7F7Fu;
    default:
      return 0;
  }
}

// Elements of the part that goes to, or comes from, rank p.
size_t elements_of(const CollectiveCall& call, const size_t* splits, int p) {
  if (has_root(call.kind)) return p == call.root ? call.numel : 0;
  return splits == nullptr ? call.numel : splits[p];
}

void fill(Parts& parts, const CollectiveCall& call, const void* data, const size_t* splits, int first, int count) {
  const int element = element_bytes(call.dtype);
  parts.data = static_cast<char*>(const_cast<void*>(data));
  parts.element_bytes = static_cast<uint32_t>(element);
  parts.begin[0] = 0;
  for (int p = 0; p < count; ++p) parts.begin[p + 1] = parts.begin[p] + elements_of(call, splits, first + p) * element;
}

uint64_t largest_of(const Parts& parts, int count) {
  uint64_t bytes = 0;
  for (int p = 0; p < count; ++p) bytes = std::max(bytes, parts.bytes_of(p));
  return bytes;
}

void cut(Parts& parts, int count, int unit_bytes, uint32_t num_channels) {
  for (int p = 0; p < count; ++p) {
    const uint64_t units = (parts.bytes_of(p) + unit_bytes - 1) / unit_bytes;
    parts.per_channel[p] = static_cast<uint32_t>((units + num_channels - 1) / num_channels);
  }
}

bool all_equal(const Parts& parts, int count) {
  for (int p = 1; p < count; ++p) {
    if (parts.bytes_of(p) != parts.bytes_of(0)) return false;
  }
  return true;
}

}  // namespace

void lay_out_parts(const CollectiveCall& call, int rank, int num_ranks, int unit_bytes, ExchangePlan& plan) {
  // A collective that reduces has one part in its output, one that gathers has one in its input: this rank's own.
  const bool one_in = gathers(call.kind);
  const bool one_out = reduces(call.kind);
  const size_t* in_splits = one_in ? call.output_splits : call.input_splits;
  const size_t* out_splits = one_out ? call.input_splits : call.output_splits;
  fill(plan.input, call, call.input, in_splits, one_in ? rank : 0, one_in ? 1 : num_ranks);
  fill(plan.output, call, call.output, out_splits, one_out ? rank : 0, one_out ? 1 : num_ranks);
  const uint64_t bytes =
      std::max(one_in ? 0 : largest_of(plan.input, num_ranks), one_out ? 0 : largest_of(plan.output, num_ranks));
  const uint64_t units = (bytes + unit_bytes - 1) / unit_bytes;
  check_that(units <= UINT32_MAX / 2, "a part of ", bytes, " bytes is too large: at most ",
             uint64_t{UINT32_MAX / 2} * unit_bytes);
  plan.largest = static_cast<uint32_t>(units);
  plan.empty = bytes == 0 && call.kind != Collective::kAllToAllV;
}

void cut_parts(const CollectiveCall& call, int num_ranks, const ExchangeScratch& scratch, uint32_t num_channels,
               ExchangePlan& plan) {
  // Pulled: one region that all read, or one for each reader. Pushed: one for each sender.
  const uint32_t num_regions = scratch.push || !gathers(call.kind) ? num_ranks : 1;
  const uint32_t max_chunk =
      std::min(scratch.slots_per_channel / num_regions, scratch.max_chunk) / kStrideUnits * kStrideUnits;
  const int num_in = gathers(call.kind) ? 1 : num_ranks;
  const int num_out = reduces(call.kind) ? 1 : num_ranks;
  cut(plan.input, num_in, scratch.unit_bytes, num_channels);
  cut(plan.output, num_out, scratch.unit_bytes, num_channels);
  const Plan whole = make_plan(plan.largest, 1, num_channels, max_chunk);
  Cut& c = plan.cut;
  c.poison = nan_word(call.dtype);
  c.open_ended = call.kind == Collective::kAllToAllV;
  c.num_chunks = whole.num_chunks;
  // Where ranks know their own pairs only, what all know is the capacity.
  c.chunk = c.open_ended ? max_chunk : whole.chunk;
  c.stride = c.open_ended ? max_chunk : stride_of(whole.chunk);
  const bool even = !c.open_ended && all_equal(gathers(call.kind) ? plan.output : plan.input, num_ranks);
  // The last channel has the fewest units: in its last epoch it may have none.
  const uint64_t others = uint64_t{num_channels - 1} * whole.per_channel + uint64_t{c.num_chunks - 1} * whole.chunk;
  c.hello = num_ranks > 1 && (!even || others >= plan.largest);
}

void pair_sizes(const CollectiveCall& call, int rank, int num_ranks, uint64_t* gives, uint64_t* takes) {
  for (int peer = 0; peer < num_ranks; ++peer) {
    if (call.kind == Collective::kAllReduce) {
      gives[peer] = takes[peer] = 0;
    } else if (gathers(call.kind)) {
      gives[peer] = elements_of(call, call.output_splits, rank);
      takes[peer] = elements_of(call, call.output_splits, peer);
    } else if (reduces(call.kind)) {
      gives[peer] = elements_of(call, call.input_splits, peer);
      takes[peer] = elements_of(call, call.input_splits, rank);
    } else {
      gives[peer] = elements_of(call, call.input_splits, peer);
      takes[peer] = elements_of(call, call.output_splits, peer);
    }
  }
}

}  // namespace llcoll
