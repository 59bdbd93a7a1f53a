// Which algorithm serves a call: a pure function, the same on every rank.
#pragma once

#include "communicator.h"

namespace llcoll {

// The protocols, each with a scratch of its own; both backends lay them out in this order.
enum Protocol { kLl, kSentinel, kFlag, kNumProtocols };
Protocol protocol_of(Algorithm algorithm);

struct Topology {
  bool cuda = false;
  bool shares_device = false;  // loopback: several ranks on one GPU
  bool has_multicast = false;
  bool wide_packets = true;  // 16-byte single-copy atomicity between all pairs
};

// True where `algorithm` can serve the type and operator at all (design: sentinel only for floating types, LL128 sums).
bool supports(Algorithm algorithm, DType dtype, ReduceOp op, const Topology& topology);

// `bytes` is numel * element size. Never kAuto; kTorch means: beyond our range.
Algorithm select(size_t bytes, DType dtype, ReduceOp op, int world_size, const Topology& topology, Policy policy,
                 bool allow_low_precision);

// Shared by the backends' resolve(): forced or requested or selected, checked by supports(). Throws LlcollError.
Algorithm resolve_algorithm(const Options& options, const Topology& topology, Collective kind, size_t numel,
                            DType dtype, ReduceOp op, Algorithm requested);

// The same for the other collectives, each one exchange by one protocol: they take the one_shot_* names.
Algorithm resolve_exchange(const Options& options, const Topology& topology, Collective kind, size_t numel, DType dtype,
                           ReduceOp op, Algorithm requested);

}  // namespace llcoll
