// NCCL's binary interface, as far as the front touches it: declarations of our own, so that building needs no nccl.h.
// tests/test_nccl_front.py compares them with an nccl.h where there is one.
#pragma once

#include <cstddef>
#include <cstdint>

namespace llcoll::nccl {

using Comm = void*;    // ncclComm_t
using Stream = void*;  // cudaStream_t
using Result = int;    // ncclResult_t
using Type = int;      // ncclDataType_t
using Op = int;        // ncclRedOp_t

struct UniqueId {
  char internal[128];
};

// The head of ncclConfig_t; what follows grows with each release.
struct Config {
  size_t size;
  unsigned int magic;
  unsigned int version;
  int blocking;
};
static_assert(offsetof(Config, blocking) == 16);

inline constexpr Result kSuccess = 0;
inline constexpr Result kSystemError = 2;
inline constexpr Result kInvalidArgument = 4;
inline constexpr Result kInvalidUsage = 5;
inline constexpr Result kRemoteError = 6;
inline constexpr Result kInProgress = 7;

inline constexpr Type kInt8 = 0;
inline constexpr Type kUint8 = 1;
inline constexpr Type kInt32 = 2;
inline constexpr Type kUint32 = 3;
inline constexpr Type kInt64 = 4;
inline constexpr Type kUint64 = 5;
inline constexpr Type kFloat16 = 6;
inline constexpr Type kFloat32 = 7;
inline constexpr Type kFloat64 = 8;
inline constexpr Type kBfloat16 = 9;
inline constexpr Type kFloat8e4m3 = 10;
inline constexpr Type kFloat8e5m2 = 11;

inline constexpr Op kSum = 0;
inline constexpr Op kProd = 1;
inline constexpr Op kMax = 2;
inline constexpr Op kMin = 3;
inline constexpr Op kAvg = 4;  // above it: reduction operators that the program made

// Every function that the front takes the place of, or calls: X(name, parameters).
#define LLC_NCCL_FUNCTIONS(X)                                                                                     \
  X(CommInitRank, (Comm * comm, int num_ranks, UniqueId id, int rank))                                            \
  X(CommInitRankConfig, (Comm * comm, int num_ranks, UniqueId id, int rank, Config* config))                      \
  X(CommInitAll, (Comm * comms, int num_devices, const int* devices))                                             \
  X(CommInitRankScalable, (Comm * comm, int num_ranks, int rank, int num_ids, UniqueId* ids, Config* config))     \
  X(CommSplit, (Comm comm, int color, int key, Comm* made, Config* config))                                       \
  X(CommShrink, (Comm comm, int* excluded, int num_excluded, Comm* made, Config* config, int flags))              \
  X(CommGrow, (Comm comm, int num_ranks, const UniqueId* id, int rank, Comm* made, Config* config))               \
  X(CommFinalize, (Comm comm))                                                                                    \
  X(CommDestroy, (Comm comm))                                                                                     \
  X(CommAbort, (Comm comm))                                                                                       \
  X(CommRevoke, (Comm comm, int flags))                                                                           \
  X(CommGetAsyncError, (Comm comm, Result * error))                                                               \
  X(CommCount, (const Comm comm, int* count))                                                                     \
  X(CommUserRank, (const Comm comm, int* rank))                                                                   \
  X(CommCuDevice, (const Comm comm, int* device))                                                                 \
  X(AllReduce, (const void* send, void* recv, size_t count, Type type, Op op, Comm comm, Stream stream))          \
  X(Reduce, (const void* send, void* recv, size_t count, Type type, Op op, int root, Comm comm, Stream stream))   \
  X(Broadcast, (const void* send, void* recv, size_t count, Type type, int root, Comm comm, Stream stream))       \
  X(Bcast, (void* buffer, size_t count, Type type, int root, Comm comm, Stream stream))                           \
  X(AllGather, (const void* send, void* recv, size_t send_count, Type type, Comm comm, Stream stream))            \
  X(ReduceScatter, (const void* send, void* recv, size_t recv_count, Type type, Op op, Comm comm, Stream stream)) \
  X(Send, (const void* send, size_t count, Type type, int peer, Comm comm, Stream stream))                        \
  X(Recv, (void* recv, size_t count, Type type, int peer, Comm comm, Stream stream))                              \
  X(GroupStart, ())                                                                                               \
  X(GroupEnd, ())

}  // namespace llcoll::nccl
