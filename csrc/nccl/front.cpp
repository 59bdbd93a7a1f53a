// libllcoll_nccl.so: NCCL's functions, in front of NCCL's own. Small collectives of communicators that llcoll joined go
// to llcoll; everything else goes on as it came.
//
// Groups: NCCL starts what a group holds at its end, as one operation whose members have no order among themselves. So
// the calls that llcoll takes wait too, and start behind NCCL's own part of the group, in the order in which they
// were made: on every rank alike, however a rank's group mixes them.
#include <pthread.h>

#include <cstdlib>
#include <cstring>
#include <vector>

#include "llcoll/llcoll.h"
#include "nccl/comms.h"
#include "nccl/counters.h"
#include "nccl/decide.h"
#include "nccl/group.h"
#include "nccl/real.h"

namespace llcoll::nccl {
namespace {

bool is_off() { return max_bytes() == 0 && !counts_calls(); }

Result start(const Taken& taken) { return result_of(llcoll_run(taken.comm, &taken.call)); }

// What a call is made of, in NCCL's terms.
struct Call {
  Kind kind;
  const void* send;
  void* recv;
  size_t count;
  Type type;
  Op op;
  int root;
  Comm comm;
  Stream stream;
};

// A root that is none goes to NCCL, for its own message.
bool has_root(const Call& call, const Entry& entry) {
  const bool rooted = call.kind == kReduce || call.kind == kBroadcast;
  return !rooted || (call.root >= 0 && call.root < entry.num_ranks);
}

// With one rank and in place a call has nothing to do, on any stream, in a group or a capture: NCCL finds that out too,
// in six times the time (cuSOLVERMp makes three such calls for each column of its matrix). Whatever NCCL might find
// wrong with it, or has to scale (operators of the program's own), goes there.
bool is_done(const Call& call, const Entry& entry) {
  return entry.is_alone && call.send == call.recv && call.send != nullptr && call.root == 0 && may_take(call.kind) &&
         is_known(call.kind, call.count, call.type, call.op);
}

// True where llcoll has the call; its result is then in `result`.
bool take(const Call& call, Result& result) {
  if (num_inside_real != 0) return false;
  const Entry* const entry = find(call.comm);
  if (entry != nullptr && is_done(call, *entry)) {
    if (counts_calls()) count_call_of_one(true);
    result = kSuccess;
    return true;
  }
  Translated translated{};
  const bool is_taken =
      entry != nullptr && entry->comm != nullptr && may_take(call.kind) &&
      translate(call.kind, call.count, call.type, call.op, entry->num_ranks, max_bytes(), translated) &&
      has_root(call, *entry);
  if (counts_calls()) {
    const int num_ranks = entry == nullptr ? 1 : entry->num_ranks;
    if (entry != nullptr && num_ranks == 1) {
      count_call_of_one(false);
    } else {
      count_call(call.kind, message_bytes(call.kind, call.count, call.type, num_ranks), is_taken);
    }
  }
  if (!is_taken) return false;
  constexpr llcoll_collective_t kCollectives[] = {LLCOLL_ALL_REDUCE, LLCOLL_REDUCE, LLCOLL_BROADCAST, LLCOLL_ALL_GATHER,
                                                  LLCOLL_REDUCE_SCATTER};
  Taken taken{entry->comm, {}};
  taken.call.struct_bytes = sizeof(llcoll_call_t);
  taken.call.collective = kCollectives[call.kind];
  taken.call.send = call.send;
  taken.call.recv = call.recv;
  taken.call.count = call.count * translated.elements;
  taken.call.dtype = translated.dtype;
  taken.call.op = translated.op;
  taken.call.root = call.root;
  taken.call.stream = call.stream;
  if (group.depth > 0) {
    group.calls.push_back(taken);
    result = kSuccess;
  } else {
    result = start(taken);
  }
  return true;
}

bool is_blocking(const Config* config, const Entry* parent) {
  if (config != nullptr && config->size >= sizeof(Config) && (config->blocking == 0 || config->blocking == 1)) {
    return config->blocking == 1;
  }
  if (parent != nullptr) return parent->is_blocking;
  const char* text = std::getenv("NCCL_COMM_BLOCKING");
  return text == nullptr || std::strcmp(text, "0") != 0;
}

void join_all(const std::vector<Comm*>& places, bool blocking) {
  std::vector<Comm> comms;
  for (Comm* place : places) {
    if (*place == nullptr) continue;  // a split without a colour
    if (blocking) {
      comms.push_back(*place);
    } else {
      leave_alone(*place);
    }
  }
  if (!comms.empty()) join(comms);
}

// Behind NCCL's own making of a communicator, or at the end of the group that it is part of.
Result made(Result result, Comm* place, bool blocking) {
  if (num_inside_real != 0 || max_bytes() == 0 || place == nullptr) return result;
  if (result != kSuccess && result != kInProgress) return result;
  if (result == kInProgress) blocking = false;
  if (group.depth > 0) {
    (blocking ? group.made : group.left_alone).push_back(place);
  } else {
    join_all({place}, blocking);
  }
  return result;
}

Result end_group() {
  const Result result = [] {
    const bool is_outermost = group.depth == 1;
    const InOrder order(is_outermost ? group.handed_on : std::vector<HandedOn>());
    const InsideReal inside;
    return real().GroupEnd();
  }();
  if (group.depth == 0 || --group.depth > 0) return result;
  const Group done = std::move(group);
  group = Group{};
  if (result != kSuccess && result != kInProgress) return result;
  join_all(done.left_alone, false);
  join_all(done.made, result == kSuccess);
  Result first = result;
  for (const Taken& taken : done.calls) {
    const Result one = start(taken);
    if (one != kSuccess && first == kSuccess) first = one;
  }
  return first;
}

}  // namespace
}  // namespace llcoll::nccl

using namespace llcoll::nccl;

#define LLC_FRONT(name) extern "C" __attribute__((visibility("default"))) Result nccl##name
#define LLC_FORWARD(name, ...)       \
  do {                               \
    const InsideReal inside;         \
    return real().name(__VA_ARGS__); \
  } while (0)
// For the calls of a communicator that run on a stream.
#define LLC_HAND_ON(name, comm, stream, ...)                      \
  do {                                                            \
    const InOrder order(is_off() ? nullptr : find(comm), stream); \
    const InsideReal inside;                                      \
    return real().name(__VA_ARGS__);                              \
  } while (0)
// Where the real library is older than the function, nobody can have asked for it by linking; by name it is absent.
#define LLC_MAKE(name, place, blocking, ...)          \
  do {                                                \
    if (real().name == nullptr) return kInvalidUsage; \
    const bool is_blocked = (blocking);               \
    Result result;                                    \
    {                                                 \
      const InsideReal inside;                        \
      result = real().name(__VA_ARGS__);              \
    }                                                 \
    return made(result, place, is_blocked);           \
  } while (0)

LLC_FRONT(CommInitRank)(Comm* comm, int num_ranks, UniqueId id, int rank) {
  LLC_MAKE(CommInitRank, comm, is_blocking(nullptr, nullptr), comm, num_ranks, id, rank);
}
LLC_FRONT(CommInitRankConfig)(Comm* comm, int num_ranks, UniqueId id, int rank, Config* config) {
  LLC_MAKE(CommInitRankConfig, comm, is_blocking(config, nullptr), comm, num_ranks, id, rank, config);
}
LLC_FRONT(CommInitRankScalable)(Comm* comm, int num_ranks, int rank, int num_ids, UniqueId* ids, Config* config) {
  LLC_MAKE(CommInitRankScalable, comm, is_blocking(config, nullptr), comm, num_ranks, rank, num_ids, ids, config);
}
LLC_FRONT(CommSplit)(Comm comm, int color, int key, Comm* place, Config* config) {
  LLC_MAKE(CommSplit, place, is_blocking(config, find(comm)), comm, color, key, place, config);
}
LLC_FRONT(CommShrink)(Comm comm, int* excluded, int num_excluded, Comm* place, Config* config, int flags) {
  LLC_MAKE(CommShrink, place, is_blocking(config, find(comm)), comm, excluded, num_excluded, place, config, flags);
}
LLC_FRONT(CommGrow)(Comm comm, int num_ranks, const UniqueId* id, int rank, Comm* place, Config* config) {
  LLC_MAKE(CommGrow, place, is_blocking(config, find(comm)), comm, num_ranks, id, rank, place, config);
}
LLC_FRONT(CommInitAll)(Comm* comms, int num_devices, const int* devices) {
  Result result;
  {
    const InsideReal inside;
    result = real().CommInitAll(comms, num_devices, devices);
  }
  if (num_inside_real != 0 || max_bytes() == 0 || result != kSuccess) return result;
  std::vector<Comm*> places;
  places.reserve(num_devices);
  for (int i = 0; i < num_devices; ++i) places.push_back(comms + i);
  if (group.depth > 0) {
    group.made.insert(group.made.end(), places.begin(), places.end());
  } else {
    join_all(places, is_blocking(nullptr, nullptr));
  }
  return result;
}

LLC_FRONT(CommFinalize)(Comm comm) { LLC_FORWARD(CommFinalize, comm); }
LLC_FRONT(CommDestroy)(Comm comm) {
  if (num_inside_real == 0) forget(comm);
  LLC_FORWARD(CommDestroy, comm);
}
LLC_FRONT(CommAbort)(Comm comm) {
  if (num_inside_real == 0) llcoll::nccl::abort(comm);
  LLC_FORWARD(CommAbort, comm);
}
LLC_FRONT(CommRevoke)(Comm comm, int flags) {
  if (real().CommRevoke == nullptr) return kInvalidUsage;
  if (num_inside_real == 0) llcoll::nccl::abort(comm);
  LLC_FORWARD(CommRevoke, comm, flags);
}
LLC_FRONT(CommGetAsyncError)(Comm comm, Result* error) {
  const Result result = real().CommGetAsyncError(comm, error);
  if (result != kSuccess || error == nullptr || *error != kSuccess) return result;
  const Entry* const entry = find(comm);
  if (entry != nullptr && entry->comm != nullptr) *error = result_of(llcoll_comm_check(entry->comm));
  return result;
}
extern "C" __attribute__((visibility("default"))) const char* ncclGetLastError(Comm comm) {
  if (last_error() != nullptr) return last_error();
  return real().GetLastError == nullptr ? "" : real().GetLastError(comm);
}

LLC_FRONT(GroupStart)() {
  if (!is_off() && num_inside_real == 0) ++group.depth;
  const InsideReal inside;
  return real().GroupStart();
}
LLC_FRONT(GroupEnd)() {
  if (is_off() || num_inside_real != 0) return real().GroupEnd();
  return end_group();
}

#define LLC_TAKE(...)                                   \
  if (!is_off()) {                                      \
    Result result = kSuccess;                           \
    if (take(Call{__VA_ARGS__}, result)) return result; \
  }

LLC_FRONT(AllReduce)(const void* send, void* recv, size_t count, Type type, Op op, Comm comm, Stream stream) {
  LLC_TAKE(kAllReduce, send, recv, count, type, op, 0, comm, stream)
  LLC_HAND_ON(AllReduce, comm, stream, send, recv, count, type, op, comm, stream);
}
LLC_FRONT(Reduce)
(const void* send, void* recv, size_t count, Type type, Op op, int root, Comm comm, Stream stream) {
  LLC_TAKE(kReduce, send, recv, count, type, op, root, comm, stream)
  LLC_HAND_ON(Reduce, comm, stream, send, recv, count, type, op, root, comm, stream);
}
LLC_FRONT(Broadcast)(const void* send, void* recv, size_t count, Type type, int root, Comm comm, Stream stream) {
  LLC_TAKE(kBroadcast, send, recv, count, type, kSum, root, comm, stream)
  LLC_HAND_ON(Broadcast, comm, stream, send, recv, count, type, root, comm, stream);
}
LLC_FRONT(Bcast)(void* buffer, size_t count, Type type, int root, Comm comm, Stream stream) {
  LLC_TAKE(kBroadcast, buffer, buffer, count, type, kSum, root, comm, stream)
  LLC_HAND_ON(Bcast, comm, stream, buffer, count, type, root, comm, stream);
}
LLC_FRONT(AllGather)(const void* send, void* recv, size_t send_count, Type type, Comm comm, Stream stream) {
  LLC_TAKE(kAllGather, send, recv, send_count, type, kSum, 0, comm, stream)
  LLC_HAND_ON(AllGather, comm, stream, send, recv, send_count, type, comm, stream);
}
LLC_FRONT(ReduceScatter)
(const void* send, void* recv, size_t recv_count, Type type, Op op, Comm comm, Stream stream) {
  LLC_TAKE(kReduceScatter, send, recv, recv_count, type, op, 0, comm, stream)
  LLC_HAND_ON(ReduceScatter, comm, stream, send, recv, recv_count, type, op, comm, stream);
}
LLC_FRONT(Send)(const void* send, size_t count, Type type, int peer, Comm comm, Stream stream) {
  LLC_TAKE(kSendRecv, send, nullptr, count, type, kSum, peer, comm, stream)
  LLC_HAND_ON(Send, comm, stream, send, count, type, peer, comm, stream);
}
LLC_FRONT(Recv)(void* recv, size_t count, Type type, int peer, Comm comm, Stream stream) {
  LLC_TAKE(kSendRecv, nullptr, recv, count, type, kSum, peer, comm, stream)
  LLC_HAND_ON(Recv, comm, stream, recv, count, type, peer, comm, stream);
}
