// From a call of one exchange to its parts and its cut: the same for both backends, no torch.
#pragma once

#include "communicator.h"
#include "llcoll/parts.h"

namespace llcoll {

// What a backend gives: how a protocol's scratch looks, and how many channels serve a part.
struct ExchangeScratch {
  int unit_bytes;
  bool push;
  uint32_t slots_per_channel;
  uint32_t max_chunk = UINT32_MAX;  // units
};

struct ExchangePlan {
  Parts input;
  Parts output;
  Cut cut;
  uint32_t largest;  // units of the largest part that all ranks know of; kAllToAllV: that this rank knows of
  bool empty;        // on all ranks: nothing travels, no epoch moves
};

// Fills parts and `largest`; the first step, after which the backend chooses its grid.
void lay_out_parts(const CollectiveCall& call, int rank, int num_ranks, int unit_bytes, ExchangePlan& plan);
// The second step: cuts the parts over `num_channels`. It depends on sizes and grid alone, so ranks agree.
void cut_parts(const CollectiveCall& call, int num_ranks, const ExchangeScratch& scratch, uint32_t num_channels,
               ExchangePlan& plan);

// Elements that this rank gives to, and takes from, each rank: what debug mode compares, pair by pair. Zeros for an
// all-reduce.
void pair_sizes(const CollectiveCall& call, int rank, int num_ranks, uint64_t* gives, uint64_t* takes);

}  // namespace llcoll
