// Which algorithm serves a call: a pure function, the same on every rank.
#pragma once

#include "communicator.h"
#include "table.h"

namespace llcoll {

// The protocols, each with a scratch of its own; both backends lay them out in this order.
enum Protocol { kLl, kSentinel, kFlag, kLl128, kNumProtocols };
inline constexpr int kNumCpuProtocols = kLl128;  // atomic lines are CUDA's alone
Protocol protocol_of(Algorithm algorithm);

struct Topology {
  bool cuda = false;
  bool shares_device = false;  // loopback: several ranks on one GPU
  bool has_multicast = false;
  bool wide_packets = true;    // 16-byte single-copy atomicity between all pairs
  int compute_capability = 0;  // CUDA: the smallest over the ranks, 90 for sm_90
  // 128-byte lines are added and read as one between all pairs: one GPU or NVLink, vector red, and room in the scratch.
  bool line_atomics = false;
  int num_nodes = 1;  // above 1, the group is one of nodes.h
  int num_lanes = 1;
};

// True where `algorithm` can serve the type and operator at all (design: sentinel only for floating types, LL128 sums).
bool supports(Algorithm algorithm, DType dtype, ReduceOp op, const Topology& topology);

// True where the policy lets selection pick `algorithm`: what may change bits needs `fast`, and LL128 for anything but
// float32 needs allow_low_precision too. What a user asks for by name is not asked this.
bool is_allowed(Algorithm algorithm, DType dtype, ReduceOp op, Policy policy, bool allow_low_precision);

// A table made ready for one communicator: of (bytes, dtype, op) alone. Rows whose algorithm cannot serve a type, or
// which the policy forbids, were replaced when it was made; so no table, wherever it came from, can change bits
// unasked.
class Selection {
 public:
  Selection() = default;
  // Options::table, or the built-in one where that is empty. Throws LlcollError for a bad table.
  Selection(const Options& options, const Topology& topology);

  // `bytes` is numel * element size. Never kAuto; kTorch means: beyond our range.
  Algorithm operator()(size_t bytes, DType dtype, ReduceOp op) const {
    const TableRow* row = rows_[static_cast<int>(dtype)][static_cast<int>(op)];
    while (bytes > row->max_bytes) ++row;
    return row->algorithm;
  }

 private:
  TableRow rows_[kNumDTypes][kNumReduceOps][kMaxTableRows]{};
};

// Shared by the backends' resolve(): forced or requested or selected, checked by supports(). Throws LlcollError.
Algorithm resolve_algorithm(const Options& options, const Topology& topology, const Selection& selection,
                            Collective kind, size_t numel, DType dtype, ReduceOp op, Algorithm requested);

// The same for the other collectives, each one exchange by one protocol: they take the one_shot_* names.
Algorithm resolve_exchange(const Options& options, const Topology& topology, Collective kind, size_t numel, DType dtype,
                           ReduceOp op, Algorithm requested);

}  // namespace llcoll
