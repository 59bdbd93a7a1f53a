// What a communicator of the C interface is made from: config and environment, agreed over all ranks. No torch, no
// CUDA.
#pragma once

#include "communicator.h"
#include "cpu/rendezvous.h"
#include "llcoll/llcoll.h"

namespace llcoll::capi {

// The core's all-gather of strings of any length, from the caller's of equal sizes: lengths first, then the bytes,
// padded. Throws where the callback fails.
AllGather bootstrap_from(llcoll_all_gather_fn all_gather, void* context, int world_size);

// Config, then environment; of this rank alone. Throws LlcollError with the value that is wrong.
Options read_options(int rank, int world_size, const llcoll_config_t& config);

// Collective: throws the same text on every rank where they differ in anything but the device's number.
void agree_on_options(const AllGather& all_gather, const Options& options, bool is_cuda);

}  // namespace llcoll::capi
