// The NCCL behind the front.
#pragma once

#include "nccl/abi.h"

namespace llcoll::nccl {

struct Real {
#define LLC_DECLARE(name, parameters) Result(*name) parameters;
  LLC_NCCL_FUNCTIONS(LLC_DECLARE)
#undef LLC_DECLARE
  const char* (*GetLastError)(Comm comm);
};

// Found at the first call: LLCOLL_NCCL_LIBRARY, the next library in the program's order, or a libnccl.so.2 that the
// program has loaded. A function that it lacks is null (older releases). Ends the process with a line on stderr where
// there is no NCCL at all: the program could not have run without it either.
const Real& real();

// The libraries that real() looks through, before it has: for the message and the log.
const char* real_path();

}  // namespace llcoll::nccl
