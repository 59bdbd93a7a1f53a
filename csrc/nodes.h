// A group that spans several nodes: inside each node a communicator of its own; between nodes an engine that somebody
// else provides (torch.distributed). No torch, no Python.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "communicator.h"

namespace llcoll {

// Where a group's ranks are: nodes in the order of their lowest rank, a node's ranks in growing order.
struct NodeMap {
  std::vector<std::vector<int>> nodes;
  int node = 0;   // this rank's
  int local = 0;  // its place there
  // Ranks of the same place on every node are a lane, which has a group of its own between the nodes: as many as the
  // smallest node has ranks. A larger node's last ranks are in none.
  int num_lanes = 1;

  // `node_of[r]`: any number that says which ranks are together. Throws LlcollError.
  static NodeMap make(const std::vector<int>& node_of, int rank);
  int num_nodes() const { return static_cast<int>(nodes.size()); }
  int num_local() const { return static_cast<int>(nodes[node].size()); }
  bool in_lane() const { return local < num_lanes; }
};

// What a lane exchanges. Offsets are into the scratch that the engine and the communicator share.
struct EngineCall {
  enum Kind : int { kAllGather, kAllToAll, kAllReduce, kBroadcast };
  Kind kind;
  int slot;  // calls of different slots may be under way together; every node starts them in the same order
  size_t send_offset;
  size_t receive_offset;
  // Bytes that a node contributes (all-gather, broadcast) or gives each other one (all-to-all), elements (all-reduce).
  size_t count;
  DType dtype;  // all-reduce alone
  ReduceOp op;
  int root;  // a node: broadcast alone
};

class Engine {
 public:
  virtual ~Engine() = default;
  // Throws, before anything is sent, where the engine cannot serve a call now (a CUDA graph is being captured).
  virtual void check_ready() = 0;
  // All-reduce and broadcast work in place at send_offset. Throws with what the engine said.
  virtual void start(const EngineCall& call) = 0;
  virtual void wait(int slot) = 0;
  // What to raise on this rank, with a class name in front, after `error` ended a call. Asks the other nodes who is
  // there, for a bounded time, and lets this node's ranks know.
  virtual std::string explain(const std::string& error) = 0;
  // Ends what is under way.
  virtual void stop(const std::string& reason) = 0;
};

// Plain work on a device's memory: enqueued on `stream` (CUDA), done on return (CPU).
struct DeviceWork {
  // float32 out[i] = in[i], exact.
  void (*widen)(DType dtype, const void* in, void* out, size_t count, void* stream);
  // Combines `num_parts` parts in order, finishes (an average divides by num_ranks) and rounds once to `dtype`. Parts
  // lie `stride` elements apart: float32 where `wide`, else of `dtype`. `out` overlaps no part.
  void (*fold)(DType dtype, bool wide, ReduceOp op, const void* parts, size_t stride, int num_parts, size_t count,
               int num_ranks, void* out, void* stream);
  void (*copy)(void* out, const void* in, size_t bytes, void* stream);
};
const DeviceWork& device_work();  // of this shared object's device

// Scratch of one communicator; `chunk` bytes are a multiple of 4096.
struct NodeScratch {
  char* data = nullptr;
  size_t chunk = 0;    // bytes of accumulators that one step handles
  size_t receive = 0;  // bytes that one step gets from all nodes
  static constexpr int kSlots = 2;
  static constexpr int kPacked = 4;  // chunks that a reduce-scatter packs

  size_t slot_bytes() const { return 2 * chunk + 2 * receive; }
  size_t bytes() const { return kSlots * slot_bytes() + kPacked * chunk; }
  size_t wide_offset(int slot) const { return slot * slot_bytes(); }
  size_t send_offset(int slot) const { return wide_offset(slot) + chunk; }
  size_t receive_offset(int slot) const { return send_offset(slot) + chunk; }
  size_t gather_offset(int slot) const { return receive_offset(slot) + receive; }
  size_t packed_offset() const { return kSlots * slot_bytes(); }
};

// `inside`: the communicator of this rank's node, whose ranks count from 0. Not collective.
std::shared_ptr<Communicator> make_nodes_communicator(const Options& options, const NodeMap& map,
                                                      std::shared_ptr<Communicator> inside,
                                                      std::unique_ptr<Engine> engine, const NodeScratch& scratch);

// How one chunk crosses between the nodes: a pure function, the same on every rank.
enum class Crossing {
  kGather,  // every node gets every node's partial result and combines them, in node order
  kOwners,  // each node combines a part, in node order, and hands it to the others
  kEngine,  // the engine's own all-reduce, in its own order
};
struct CrossingPlan {
  Crossing crossing;
  bool wide;  // 16- and 8-bit floats travel as float32: one rounding in all
};
CrossingPlan plan_crossing(size_t bytes, DType dtype, ReduceOp op, int num_nodes, Policy policy);

}  // namespace llcoll
