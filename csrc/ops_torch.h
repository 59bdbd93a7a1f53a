// The fallback: torch.distributed, through its functional ops (graph-safe), on the group's own backend.
#pragma once

#include "ops_common.h"

namespace llcoll {

// In place on a contiguous tensor.
void torch_all_reduce(AtenTensorHandle tensor, DType dtype, ReduceOp op, const Options& options);

// Any other collective, between contiguous tensors that hold what call.input and call.output point to. They share
// memory only where the collective has a root and they are one tensor. Splits as in CollectiveCall.
void torch_exchange(const CollectiveCall& call, AtenTensorHandle input, AtenTensorHandle output,
                    const Options& options);

}  // namespace llcoll
