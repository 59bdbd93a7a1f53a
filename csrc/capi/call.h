// From a call of the C interface to one of the core: checked, with its algorithm.
#pragma once

#include <vector>

#include "communicator.h"
#include "llcoll/llcoll.h"

namespace llcoll::capi {

struct CheckedCall {
  CollectiveCall call;
  bool empty;  // on every rank: nothing to send
};

// Throws LlcollError for bad arguments, with their values. Keeps the pointers to the counts.
CheckedCall check_call(const Communicator& communicator, const llcoll_call_t& call);

}  // namespace llcoll::capi
