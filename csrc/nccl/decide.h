// Which calls llcoll takes: a pure function of what is the same on every rank, so that all decide alike.
#pragma once

#include "llcoll/llcoll.h"
#include "nccl/abi.h"

namespace llcoll::nccl {

enum Kind { kAllReduce, kReduce, kBroadcast, kAllGather, kReduceScatter, kSendRecv, kNumKinds };
const char* name_of(Kind kind);

// Bytes of one element; 0: a type that we do not know.
size_t bytes_of(Type type);

// What decides about a call: bytes of the largest buffer that it has on any rank.
size_t message_bytes(Kind kind, size_t count, Type type, int num_ranks);

struct Translated {
  llcoll_dtype_t dtype;
  llcoll_op_t op;
  size_t elements;  // per element of the call: copies of types that llcoll lacks go byte by byte
};

// False: the call goes to NCCL. Reductions of 8-bit floats, integer averages, minima and maxima of unsigned 32- and
// 64-bit integers and operators of the program's own do; so do empty calls, whose arguments NCCL checks.
bool translate(Kind kind, size_t count, Type type, Op op, int num_ranks, size_t max_bytes, Translated& translated);

// A call that NCCL would not refuse and that leaves one rank's data as they are: any type, NCCL's own operators.
bool is_known(Kind kind, size_t count, Type type, Op op);

}  // namespace llcoll::nccl
