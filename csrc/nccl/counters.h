// How many calls of each kind and size went where. Counted with LLCOLL_LOG=1 alone, printed when the process ends.
#pragma once

#include <cstddef>

#include "nccl/decide.h"

namespace llcoll::nccl {

bool counts_calls();
// Of a communicator with one rank: nothing is to be sent. `is_done`: nor anything else to do.
void count_call_of_one(bool is_done);
void count_call(Kind kind, size_t bytes, bool is_taken);
// A line on stderr with LLCOLL_LOG=1.
void log_line(const char* format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace llcoll::nccl
