// The llcoll communicator beside each of NCCL's.
#pragma once

#include <cstddef>
#include <vector>

#include "llcoll/llcoll.h"
#include "nccl/abi.h"
#include "nccl/decide.h"

namespace llcoll::nccl {

// LLCOLL_NCCL_MAX_BYTES: messages up to here go to llcoll; 0: none do, and no communicator is made.
size_t max_bytes();

// LLCOLL_NCCL_CALLS: the kinds of calls that llcoll may have; not set: all that it can.
bool may_take(Kind kind);

struct Entry {
  llcoll_comm_t comm = nullptr;  // null: everything of this communicator goes to NCCL
  int num_ranks = 0;
  int rank = 0;
  bool is_blocking = true;
  bool is_alone = false;  // a blocking communicator of one rank
};

// Null for a communicator that we have not seen made. Valid until forget().
const Entry* find(Comm comm);

// Collective over each communicator's ranks: makes and remembers what belongs beside it. With several, of this thread,
// one thread each, since every one of them waits for its peers. Where llcoll cannot serve the ranks (several hosts, no
// peer access) it says why with LLCOLL_LOG=1 and leaves the communicator to NCCL: on every rank alike.
void join(const std::vector<Comm>& comms);
// Of a communicator that does not block: remembered as one that stays with NCCL.
void leave_alone(Comm comm);

// Before NCCL's own destroy: waits for this rank's calls.
void forget(Comm comm);
// Before NCCL's own abort: ends the waits of every rank's calls, unless this rank's are done, as they are where a
// program aborts in order to leave.
void abort(Comm comm);

}  // namespace llcoll::nccl
