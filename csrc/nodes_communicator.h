// The communicator of a group that spans nodes: what nodes.h makes.
#pragma once

#include <mutex>

#include "nodes.h"
#include "select.h"

namespace llcoll {

class NodesCommunicator final : public Communicator {
 public:
  NodesCommunicator(const Options& options, const NodeMap& map, std::shared_ptr<Communicator> inside,
                    std::unique_ptr<Engine> engine, const NodeScratch& scratch);

  Algorithm resolve(Collective kind, size_t numel, DType dtype, ReduceOp op, Algorithm requested) const override;
  void run(const CollectiveCall& call) override;
  void barrier(void* stream) override;
  void check() override;
  void abort(const std::string& reason) override;
  void announce_error(const std::string& what) override { inside_->announce_error(what); }
  void close() override;

 protected:
  const char* device_name() const override;

 private:
  // A reduction of `numel` elements of all ranks into `output` on each; `lanes`: how many ranks of a node talk to the
  // other nodes.
  struct Reduction {
    const char* input;
    char* output;
    size_t numel;
    DType dtype;
    ReduceOp op;
    int lanes;
    void* stream;
    CrossingPlan plan;

    DType wire() const { return plan.wide ? DType::kFloat32 : dtype; }
    size_t wire_bytes() const { return static_cast<size_t>(element_bytes(wire())); }
  };
  // Lane i has the units [i * part, i * part + count(i)) of a chunk.
  struct Cut {
    size_t part;
    size_t total;
    size_t count(int lane) const {
      const size_t begin = part * static_cast<size_t>(lane);
      return begin >= total ? 0 : total - begin < part ? total - begin : part;
    }
  };
  static Cut cut(size_t total, int lanes);

  std::unique_lock<std::mutex> lock_calls();
  void check_usable();
  template <class F>
  void guarded(F&& f);
  void dispatch(const CollectiveCall& call);

  void all_reduce(Reduction reduction);
  void start_reduction(const Reduction& r, size_t begin, size_t count, int slot);
  void finish_reduction(const Reduction& r, size_t begin, size_t count, int slot);
  void start_crossing(const Reduction& r, size_t count, int slot);
  const char* finish_crossing(const Reduction& r, size_t count, int slot);
  Reduction reduction_of(const CollectiveCall& call, size_t numel) const;
  void reduce_scatter(const CollectiveCall& call);
  void reduce(const CollectiveCall& call);
  void all_gather(const CollectiveCall& call);
  void broadcast(const CollectiveCall& call);

  // Runs start(begin, count, slot) and finish(...) for each chunk of `total`, a chunk's start before the finish of the
  // one before: the node's own exchange of one goes on while the other is between the nodes.
  template <class Start, class Finish>
  static void in_chunks(size_t total, size_t chunk, Start&& start, Finish&& finish);

  // The node's own collectives; nothing to do, but to copy, in a node of one rank.
  void inside(Collective kind, const void* input, void* output, size_t numel, DType dtype, ReduceOp op, int root,
              const size_t* input_splits, const size_t* output_splits, void* stream);
  void inside_broadcast(const void* input, void* output, size_t bytes, int root, void* stream);
  // `bytes[i]` of local rank i, one after the other, on all.
  void inside_gather(const void* input, void* output, const size_t* bytes, void* stream);

  int lanes_of(Algorithm algorithm) const { return algorithm == Algorithm::kLeaders ? 1 : map_.num_lanes; }
  char* send(int slot) const { return scratch_.data + scratch_.send_offset(slot); }
  char* received(int slot) const { return scratch_.data + scratch_.receive_offset(slot); }
  char* wide(int slot) const { return scratch_.data + scratch_.wide_offset(slot); }
  char* gathered(int slot) const { return scratch_.data + scratch_.gather_offset(slot); }
  char* packed() const { return scratch_.data + scratch_.packed_offset(); }

  const NodeMap map_;
  const std::shared_ptr<Communicator> inside_;
  const std::unique_ptr<Engine> engine_;
  const NodeScratch scratch_;
  const DeviceWork& work_;
  const Topology topology_;
  const Selection selection_;
  std::string failure_;  // set once: every later call raises it
  std::mutex mutex_;     // calls of several threads: one scratch, one order
};

}  // namespace llcoll
