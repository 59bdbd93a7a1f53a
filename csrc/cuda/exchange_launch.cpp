#include "cuda/exchange_launch.h"

#include <algorithm>

#include "exchange_plan.h"

namespace llcoll {
namespace {

// With splits a rank knows its own pairs only, so the grid is fixed: enough CTAs for some 64 KiB a pair and epoch.
constexpr uint32_t kOpenEndedChannels = 16;
constexpr uint32_t kOpenEndedThreads = 256;

ExchangeKernel find(const CollectiveCall& call) {
  switch (call.kind) {
    case Collective::kAllGather:
    case Collective::kBroadcast:
      return find_all_gather(call.algorithm);
    case Collective::kAllToAll:
    case Collective::kAllToAllV:
      return find_all_to_all(call.algorithm);
    default:
      break;
  }
  switch (call.algorithm) {
    case Algorithm::kOneShotLl:
      return find_reduce_scatter_ll(call.dtype, call.op);
    case Algorithm::kOneShotSentinel:
      return find_reduce_scatter_sentinel(call.dtype, call.op);
    case Algorithm::kOneShotFlag:
      return find_reduce_scatter_flag(call.dtype, call.op);
    default:
      return nullptr;
  }
}

}  // namespace

void plan_exchange_launch(const CollectiveCall& call, int rank, int num_ranks, const CudaLayout& layout,
                          uint32_t max_channels, ExchangeLaunch& launch) {
  launch.protocol = protocol_of(call.algorithm);
  const bool push = launch.protocol != kFlag;
  const int unit_bytes = launch.protocol == kLl ? 8 : 16;
  ExchangePlan plan;
  lay_out_parts(call, rank, num_ranks, unit_bytes, plan);
  launch.empty = plan.empty;
  if (plan.empty) return;
  if (call.kind == Collective::kAllToAllV) {
    launch.num_threads = kOpenEndedThreads;
    launch.num_channels = std::min(kOpenEndedChannels, max_channels);
  } else {
    launch.num_threads = threads_for(plan.largest, max_channels);
    launch.num_channels =
        std::clamp<uint32_t>((plan.largest + launch.num_threads - 1) / launch.num_threads, 1, max_channels);
    const uint32_t per_channel = (plan.largest + launch.num_channels - 1) / launch.num_channels;
    if (per_channel <= launch.num_threads) launch.num_threads = with_idle_warps(per_channel);
  }
  const uint32_t slots = layout.shape[launch.protocol].slots_per_channel;
  cut_parts(call, num_ranks, {unit_bytes, push, slots}, launch.num_channels, plan);
  launch.kernel = find(call);
  launch.args.input = plan.input;
  launch.args.output = plan.output;
  launch.args.cut = plan.cut;
  launch.args.op = call.op;
}

}  // namespace llcoll
