// Pure functions of a group of several nodes: who is where, and how a message crosses between nodes.
#include <algorithm>
#include <map>

#include "check.h"
#include "nodes.h"

namespace llcoll {
namespace {

// Messages up to here travel between nodes as float32 under `fast` too: latency hides the doubled bytes.
constexpr size_t kWideBytes = 16 << 10;
// With more than two nodes, what all of them together may send to each by kGather: beyond it the bytes cost more than
// kOwners' second exchange.
constexpr size_t kGatherBytes = 64 << 10;
constexpr size_t kInPlaceBytes = 1 << 20;

bool engine_adds(DType dtype, bool wide, ReduceOp op) {
  // Its minimum and maximum treat NaN and -0 in their own way; nor has it every type.
  if (op == ReduceOp::kMin || op == ReduceOp::kMax) return false;
  return wide || dtype == DType::kFloat32 || dtype == DType::kFloat64 || dtype == DType::kFloat16 ||
         dtype == DType::kBFloat16;
}

}  // namespace

NodeMap NodeMap::make(const std::vector<int>& node_of, int rank) {
  check_that(rank >= 0 && rank < static_cast<int>(node_of.size()), "rank ", rank, " of ", node_of.size(), " ranks");
  NodeMap map;
  std::map<int, size_t> index_of;
  for (int r = 0; r < static_cast<int>(node_of.size()); ++r) {
    const auto [it, is_new] = index_of.try_emplace(node_of[r], map.nodes.size());
    if (is_new) map.nodes.emplace_back();
    map.nodes[it->second].push_back(r);
    if (r == rank) {
      map.node = static_cast<int>(it->second);
      map.local = static_cast<int>(map.nodes[it->second].size()) - 1;
    }
  }
  size_t smallest = map.nodes[0].size();
  for (const std::vector<int>& ranks : map.nodes) {
    smallest = std::min(smallest, ranks.size());
    check_that(ranks.size() <= static_cast<size_t>(kMaxRanks), "a node with ", ranks.size(), " ranks; at most ",
               kMaxRanks, " are supported");
  }
  map.num_lanes = static_cast<int>(smallest);
  return map;
}

CrossingPlan plan_crossing(size_t bytes, DType dtype, ReduceOp op, int num_nodes, Policy policy) {
  const bool narrow = is_floating(dtype) && element_bytes(dtype) < 4;
  const bool rounds = op != ReduceOp::kMin && op != ReduceOp::kMax;
  const bool fast = policy == Policy::kFast;
  const bool wide = narrow && rounds && (!fast || bytes <= kWideBytes);
  if (bytes * static_cast<size_t>(num_nodes) <= kGatherBytes) return {Crossing::kGather, wide};
  // The engine adds in place, without the copies that its all-gather makes.
  if (fast && engine_adds(dtype, wide, op) && bytes > kInPlaceBytes) return {Crossing::kEngine, wide};
  // Of two nodes each sends its partial once either way, and kGather needs one exchange.
  if (num_nodes <= 2) return {Crossing::kGather, wide};
  return {fast && engine_adds(dtype, wide, op) ? Crossing::kEngine : Crossing::kOwners, wide};
}

}  // namespace llcoll
