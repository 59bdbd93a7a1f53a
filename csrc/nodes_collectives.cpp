// The collectives of a group that spans nodes: each a few collectives of the node and of the engine, chunk by chunk.
#include <algorithm>
#include <cstdint>

#include "check.h"
#include "nodes_communicator.h"
#include "nodes_parts.h"

namespace llcoll {
namespace {

constexpr size_t kGrain = 64;  // units of a lane's part: whole cache lines, whatever the type

}  // namespace

NodesCommunicator::Cut NodesCommunicator::cut(size_t total, int lanes) {
  if (lanes == 1) return {total, total};
  return {round_up((total + lanes - 1) / lanes, kGrain), total};
}

template <class Start, class Finish>
void NodesCommunicator::in_chunks(size_t total, size_t chunk, Start&& start, Finish&& finish) {
  const size_t num_chunks = (total + chunk - 1) / chunk;
  auto count = [&](size_t c) { return std::min(chunk, total - c * chunk); };
  auto slot = [](size_t c) { return static_cast<int>(c % NodeScratch::kSlots); };
  static_assert(NodeScratch::kSlots == 2, "one chunk starts while the one before it is under way");
  for (size_t c = 0; c <= num_chunks; ++c) {
    if (c < num_chunks) start(c * chunk, count(c), slot(c));
    if (c > 0) finish((c - 1) * chunk, count(c - 1), slot(c - 1));
  }
}

NodesCommunicator::Reduction NodesCommunicator::reduction_of(const CollectiveCall& call, size_t numel) const {
  const size_t bytes = numel * element_bytes(call.dtype);
  return {static_cast<const char*>(call.input),
          static_cast<char*>(call.output),
          numel,
          call.dtype,
          call.op,
          lanes_of(call.algorithm),
          call.stream,
          plan_crossing(bytes, call.dtype, call.op, map_.num_nodes(), options_.policy)};
}

void NodesCommunicator::all_reduce(Reduction r) {
  const size_t unit = r.wire_bytes();
  const auto num_nodes = static_cast<size_t>(map_.num_nodes());
  // Parts are rounded up to kGrain, and kOwners pads them to a multiple of the nodes.
  const size_t slack = kGrain + num_nodes;
  const size_t received = scratch_.receive / unit / (r.plan.crossing == Crossing::kGather ? num_nodes : 1);
  const size_t part = std::min(scratch_.chunk / unit, received);
  check_that(part > slack, "a scratch of ", scratch_.bytes(), " bytes is too small for ", num_nodes, " nodes");
  const size_t chunk = std::min((part - slack) * static_cast<size_t>(r.lanes), scratch_.chunk / unit);
  in_chunks(
      r.numel, chunk, [&](size_t begin, size_t count, int slot) { start_reduction(r, begin, count, slot); },
      [&](size_t begin, size_t count, int slot) { finish_reduction(r, begin, count, slot); });
}

// The node's partial result, a part to each lane, and on its way between the nodes.
void NodesCommunicator::start_reduction(const Reduction& r, size_t begin, size_t count, int slot) {
  const char* input = r.input + begin * element_bytes(r.dtype);
  const bool alone = map_.num_local() == 1;
  if (r.plan.wide) {
    char* widened = alone ? send(slot) : wide(slot);
    work_.widen(r.dtype, input, widened, count, r.stream);
    input = widened;
  }
  const ReduceOp op = r.op == ReduceOp::kAvg ? ReduceOp::kSum : r.op;
  const Cut parts = cut(count, r.lanes);
  if (alone) {
    work_.copy(send(slot), input, count * r.wire_bytes(), r.stream);
  } else if (r.lanes == 1) {
    inside(Collective::kReduce, input, send(slot), count, r.wire(), op, 0, nullptr, nullptr, r.stream);
  } else {
    size_t splits[kMaxRanks] = {};
    for (int i = 0; i < r.lanes; ++i) splits[i] = parts.count(i);
    inside(Collective::kReduceScatter, input, send(slot), 0, r.wire(), op, 0, splits, nullptr, r.stream);
  }
  const size_t own = map_.local < r.lanes ? parts.count(map_.local) : 0;
  if (own != 0) start_crossing(r, own, slot);
}

void NodesCommunicator::finish_reduction(const Reduction& r, size_t begin, size_t count, int slot) {
  const auto element = static_cast<size_t>(element_bytes(r.dtype));
  char* output = r.output + begin * element;
  const Cut parts = cut(count, r.lanes);
  const size_t own = map_.local < r.lanes ? parts.count(map_.local) : 0;
  const char* result = own == 0 ? nullptr : finish_crossing(r, own, slot);
  if (r.lanes == 1) return inside_broadcast(result, output, count * element, 0, r.stream);
  size_t bytes[kMaxRanks] = {};
  for (int i = 0; i < r.lanes; ++i) bytes[i] = parts.count(i) * element;
  inside_gather(result, output, bytes, r.stream);
}

void NodesCommunicator::start_crossing(const Reduction& r, size_t count, int slot) {
  EngineCall call{EngineCall::kAllGather,
                  slot,
                  scratch_.send_offset(slot),
                  scratch_.receive_offset(slot),
                  count * r.wire_bytes(),
                  r.wire(),
                  r.op == ReduceOp::kAvg ? ReduceOp::kSum : r.op,
                  0};
  if (r.plan.crossing == Crossing::kEngine) {
    call.kind = EngineCall::kAllReduce;
    call.count = count;
  } else if (r.plan.crossing == Crossing::kOwners) {
    call.kind = EngineCall::kAllToAll;
    const auto num_nodes = static_cast<size_t>(map_.num_nodes());
    call.count = (count + num_nodes - 1) / num_nodes * r.wire_bytes();
  }
  engine_->start(call);
}

// Where the finished part lies then.
const char* NodesCommunicator::finish_crossing(const Reduction& r, size_t count, int slot) {
  const int num_nodes = map_.num_nodes();
  auto fold = [&](const char* parts, size_t stride, int num_parts, size_t n, char* out) {
    work_.fold(r.dtype, r.plan.wide, r.op, parts, stride, num_parts, n, world_size(), out, r.stream);
  };
  engine_->wait(slot);
  switch (r.plan.crossing) {
    case Crossing::kEngine:
      if (!r.plan.wide && r.op != ReduceOp::kAvg) return send(slot);  // the engine's bits, on every rank
      fold(send(slot), 0, 1, count, received(slot));
      return received(slot);
    case Crossing::kGather:
      fold(received(slot), count, num_nodes, count, send(slot));
      return send(slot);
    case Crossing::kOwners:
      break;
  }
  const size_t piece = (count + num_nodes - 1) / num_nodes;
  const size_t begin = piece * static_cast<size_t>(map_.node);
  const size_t own = begin >= count ? 0 : std::min(piece, count - begin);
  fold(received(slot), piece, num_nodes, own, send(slot));
  engine_->start({EngineCall::kAllGather, slot, scratch_.send_offset(slot), scratch_.receive_offset(slot),
                  piece * static_cast<size_t>(element_bytes(r.dtype)), r.dtype, r.op, 0});
  engine_->wait(slot);
  return received(slot);
}

// The node's partial results of a lane's parts meet at that lane's rank, go to the nodes whose ranks they are for, and
// are added there in node order.
void NodesCommunicator::reduce_scatter(const CollectiveCall& call) {
  const auto element = static_cast<size_t>(element_bytes(call.dtype));
  const RankParts parts(call, call.input_splits, world_size(), 1);
  const Reduction r = reduction_of(call, parts.total());
  const size_t unit = r.wire_bytes();
  const auto num_nodes = static_cast<size_t>(map_.num_nodes()), lanes = static_cast<size_t>(r.lanes);
  const auto node = static_cast<size_t>(map_.node), own_lane = static_cast<size_t>(map_.local);
  const bool in_lane = own_lane < lanes;
  const ReduceOp op = r.op == ReduceOp::kAvg ? ReduceOp::kSum : r.op;
  const size_t most_in_lane = (most_local_ranks(map_) + lanes - 1) / lanes;
  // A single lane's pieces stay without gaps, so that the input needs no packing.
  const size_t grain = lanes == 1 ? 1 : std::max<size_t>(1, 16 / unit);
  // A lane's pieces fit what it sends, and those of all lanes what is packed.
  const size_t limit = std::min(scratch_.chunk, NodeScratch::kPacked * scratch_.chunk / lanes) / (num_nodes * unit);
  check_that(limit >= grain + most_in_lane, "a scratch of ", scratch_.bytes(), " bytes is too small for ", num_nodes,
             " nodes");
  const size_t chunk = (limit - grain) / most_in_lane;
  auto lane_chunk = [&](size_t from, size_t count) { return LaneChunk{map_, parts, lanes, grain, from, count}; };

  // In the order of lanes, nodes and ranks, of the wire's type; where that is the input's own order, the input itself.
  auto pack = [&](const LaneChunk& part) {
    const LaneChunk::Layout layout = part.layout();
    if (!r.plan.wide && layout.is_in_order()) return r.input + layout.runs[0].begin * element;
    for (const LaneChunk::Run& run : layout.runs) {
      const char* source = r.input + run.begin * element;
      char* target = packed() + run.packed * unit;
      if (r.plan.wide) {
        work_.widen(r.dtype, source, target, run.length, r.stream);
      } else {
        work_.copy(target, source, run.length * element, r.stream);
      }
    }
    return static_cast<const char*>(packed());
  };
  auto start = [&](size_t from, size_t count, int slot) {
    const LaneChunk part = lane_chunk(from, count);
    const char* input = pack(part);
    size_t splits[kMaxRanks] = {};
    for (size_t i = 0; i < lanes; ++i) splits[i] = num_nodes * part.piece(i);
    if (map_.num_local() == 1) {
      work_.copy(send(slot), input, splits[0] * unit, r.stream);
    } else if (lanes == 1) {
      inside(Collective::kReduce, input, send(slot), splits[0], r.wire(), op, 0, nullptr, nullptr, r.stream);
    } else {
      inside(Collective::kReduceScatter, input, send(slot), 0, r.wire(), op, 0, splits, nullptr, r.stream);
    }
    if (!in_lane || splits[own_lane] == 0) return;
    engine_->start({EngineCall::kAllToAll, slot, scratch_.send_offset(slot), scratch_.receive_offset(slot),
                    splits[own_lane] / num_nodes * unit, r.wire(), op, 0});
  };
  auto finish = [&](size_t from, size_t count, int slot) {
    const LaneChunk part = lane_chunk(from, count);
    const bool direct = map_.num_local() == r.lanes;  // each rank of this node is its lane's only one here
    char* own_output = r.output + from * element;
    if (const size_t piece = in_lane ? part.piece(own_lane) : 0; piece != 0) {
      engine_->wait(slot);
      const size_t mine = part.of_node(node, own_lane);
      if (mine != 0) {
        work_.fold(r.dtype, r.plan.wide, r.op, received(slot), piece, map_.num_nodes(), mine, world_size(),
                   direct ? own_output : send(slot), r.stream);
      }
    }
    if (direct) return;
    size_t bytes[kMaxRanks] = {};
    for (size_t i = 0; i < lanes; ++i) bytes[i] = part.of_node(node, i) * element;
    if (lanes == 1) {
      inside_broadcast(send(slot), gathered(slot), bytes[0], 0, r.stream);
    } else {
      inside_gather(send(slot), gathered(slot), bytes, r.stream);
    }
    work_.copy(own_output, gathered(slot) + part.before(node, own_lane) * element, part.of_rank(rank()) * element,
               r.stream);
  };
  in_chunks(parts.largest(), chunk, start, finish);
}

void NodesCommunicator::reduce(const CollectiveCall& call) {
  const auto element = static_cast<size_t>(element_bytes(call.dtype));
  const size_t chunk = NodeScratch::kPacked * scratch_.chunk / element;
  const bool is_root = call.root == rank();
  const Reduction whole = reduction_of(call, call.numel);
  for (size_t begin = 0; begin < call.numel; begin += chunk) {
    Reduction r = whole;
    r.numel = std::min(chunk, call.numel - begin);
    r.input += begin * element;
    r.output = is_root ? whole.output + begin * element : packed();
    all_reduce(r);
  }
}

// The node's block of a chunk, cut for the lanes; each gets all nodes' pieces, which the node then shares.
void NodesCommunicator::all_gather(const CollectiveCall& call) {
  const auto element = static_cast<size_t>(element_bytes(call.dtype));
  const int lanes = lanes_of(call.algorithm);
  const auto num_nodes = static_cast<size_t>(map_.num_nodes());
  const RankParts parts(call, call.output_splits, world_size(), element);
  const auto* input = static_cast<const char*>(call.input);
  auto* output = static_cast<char*>(call.output);
  const size_t most_local = most_local_ranks(map_);
  const size_t slack = kGrain * static_cast<size_t>(lanes);
  const size_t block = std::min(scratch_.chunk, scratch_.receive / num_nodes);
  check_that(block >= slack + most_local, "a scratch of ", scratch_.bytes(), " bytes is too small for ", num_nodes,
             " nodes");
  const size_t chunk = (block - slack) / most_local;
  auto cut_of = [&](size_t from, size_t count) {
    size_t largest = 0;
    for (const std::vector<int>& ranks : map_.nodes) {
      size_t bytes = 0;
      for (int r : ranks) bytes += parts.within(r, from, count);
      largest = std::max(largest, bytes);
    }
    return cut(largest, lanes);
  };
  auto start = [&](size_t from, size_t count, int slot) {
    size_t bytes[kMaxRanks] = {};
    for (int i = 0; i < map_.num_local(); ++i) bytes[i] = parts.within(map_.nodes[map_.node][i], from, count);
    inside_gather(input + from, wide(slot), bytes, call.stream);
    const Cut pieces = cut_of(from, count);
    if (map_.local >= lanes || pieces.part == 0) return;
    // What lies behind a smaller node's block travels too, and is not looked at.
    engine_->start({EngineCall::kAllGather, slot,
                    scratch_.wide_offset(slot) + pieces.part * static_cast<size_t>(map_.local),
                    scratch_.receive_offset(slot), pieces.part, DType::kUInt8, ReduceOp::kSum, 0});
  };
  auto finish = [&](size_t from, size_t count, int slot) {
    const Cut pieces = cut_of(from, count);
    if (pieces.part == 0) return;
    if (map_.local < lanes) engine_->wait(slot);
    const char* all = received(slot);
    if (map_.num_local() > 1) {
      size_t bytes[kMaxRanks] = {};
      std::fill_n(bytes, lanes, pieces.part * num_nodes);
      if (lanes == 1) {
        inside_broadcast(received(slot), gathered(slot), bytes[0], 0, call.stream);
      } else {
        inside_gather(received(slot), gathered(slot), bytes, call.stream);
      }
      all = gathered(slot);
    }
    for (size_t m = 0; m < num_nodes; ++m) {
      size_t at = 0;  // in the node's block
      for (int r : map_.nodes[m]) {
        const size_t length = parts.within(r, from, count);
        for (size_t done = 0; done < length;) {
          const size_t lane = (at + done) / pieces.part, inner = (at + done) % pieces.part;
          const size_t run = std::min(length - done, pieces.part - inner);
          work_.copy(output + parts.begin[r] + from + done, all + (lane * num_nodes + m) * pieces.part + inner, run,
                     call.stream);
          done += run;
        }
        at += length;
      }
    }
  };
  in_chunks(parts.largest(), chunk, start, finish);
}

// The root's node has the message first; each lane carries a part of it to the others.
void NodesCommunicator::broadcast(const CollectiveCall& call) {
  const size_t total = call.numel * static_cast<size_t>(element_bytes(call.dtype));
  const int lanes = lanes_of(call.algorithm);
  int root_node = 0, root_local = 0;
  for (int m = 0; m < map_.num_nodes(); ++m) {
    for (int i = 0; i < static_cast<int>(map_.nodes[m].size()); ++i) {
      if (map_.nodes[m][i] == call.root) root_node = m, root_local = i;
    }
  }
  const bool at_root = map_.node == root_node;
  const auto* input = static_cast<const char*>(call.input);
  auto* output = static_cast<char*>(call.output);
  auto start = [&](size_t begin, size_t count, int slot) {
    if (at_root)
      inside_broadcast(call.root == rank() ? input + begin : nullptr, output + begin, count, root_local, call.stream);
    const Cut parts = cut(count, lanes);
    const size_t own = map_.local < lanes ? parts.count(map_.local) : 0;
    if (own == 0) return;
    if (at_root) {
      const char* from = call.root == rank() ? input : output;
      work_.copy(send(slot), from + begin + parts.part * static_cast<size_t>(map_.local), own, call.stream);
    }
    engine_->start(
        {EngineCall::kBroadcast, slot, scratch_.send_offset(slot), 0, own, DType::kUInt8, ReduceOp::kSum, root_node});
  };
  auto finish = [&](size_t begin, size_t count, int slot) {
    const Cut parts = cut(count, lanes);
    if (map_.local < lanes && parts.count(map_.local) != 0) engine_->wait(slot);
    if (at_root) return;
    if (lanes == 1) return inside_broadcast(send(slot), output + begin, count, 0, call.stream);
    size_t bytes[kMaxRanks] = {};
    for (int i = 0; i < lanes; ++i) bytes[i] = parts.count(i);
    inside_gather(send(slot), output + begin, bytes, call.stream);
  };
  in_chunks(total, scratch_.chunk, start, finish);
}

}  // namespace llcoll
