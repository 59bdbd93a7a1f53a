// Where the parts of a collective over several nodes lie: rank by rank in a tensor, and lane by lane on the wire.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "communicator.h"
#include "nodes.h"

namespace llcoll {

inline size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

// A part of each rank: begin in the tensor that has all, and length.
struct RankParts {
  std::vector<size_t> begin;
  std::vector<size_t> size;

  RankParts(const CollectiveCall& call, const size_t* splits, int num_ranks, size_t unit) {
    size_t at = 0;
    for (int r = 0; r < num_ranks; ++r) {
      size.push_back((splits == nullptr ? call.numel : splits[r]) * unit);
      begin.push_back(at);
      at += size.back();
    }
    begin.push_back(at);
  }
  size_t total() const { return begin.back(); }
  size_t largest() const { return *std::max_element(size.begin(), size.end()); }
  // What of rank r's part lies in [from, from + count).
  size_t within(int r, size_t from, size_t count) const {
    return size[r] <= from ? 0 : std::min(size[r] - from, count);
  }
};

inline size_t most_local_ranks(const NodeMap& map) {
  size_t most = 0;
  for (const std::vector<int>& ranks : map.nodes) most = std::max(most, ranks.size());
  return most;
}

// What the lanes of a reduce-scatter carry of one chunk, [from, from + count) of every part. Lane i has, of every node,
// the parts of the ranks i, i + lanes, ... there; each node sends each other one a piece.
struct LaneChunk {
  const NodeMap& map;
  const RankParts& parts;
  size_t lanes;
  size_t grain;  // pieces are a multiple of it, so that a lane begins at whole vectors
  size_t from;
  size_t count;

  size_t of_rank(int rank) const { return parts.within(rank, from, count); }

  // Of a node's ranks in the lane, what lies in the chunk.
  size_t of_node(size_t node, size_t lane) const {
    size_t total = 0;
    for (size_t i = lane; i < map.nodes[node].size(); i += lanes) total += of_rank(map.nodes[node][i]);
    return total;
  }

  // The most that any node's ranks get, so all nodes agree on it.
  size_t piece(size_t lane) const {
    size_t largest = 0;
    for (size_t m = 0; m < map.nodes.size(); ++m) largest = std::max(largest, of_node(m, lane));
    return round_up(largest, grain);
  }

  // Of the chunk in the order of lanes and ranks of one node, what lies before the part of its rank `local`.
  size_t before(size_t node, size_t local) const {
    size_t total = 0;
    for (size_t lane = 0; lane < local % lanes; ++lane) total += of_node(node, lane);
    for (size_t i = local % lanes; i < local; i += lanes) total += of_rank(map.nodes[node][i]);
    return total;
  }

  // A run of elements that stand together in the tensor and in the order of lanes, nodes and ranks.
  struct Run {
    size_t begin;   // in the tensor
    size_t packed;  // in that order
    size_t length;
  };
  struct Layout {
    std::vector<Run> runs;
    size_t total;  // gaps behind a smaller node's parts are counted: they travel too, and are not looked at

    // That order is the tensor's own. A gap, at the end too, would be read beyond the chunk, or the tensor.
    bool is_in_order() const { return runs.size() == 1 && runs[0].packed == 0 && runs[0].length == total; }
  };
  Layout layout() const {
    Layout made{{}, 0};
    for (size_t lane = 0; lane < lanes; ++lane) {
      const size_t step = piece(lane);
      for (const std::vector<int>& ranks : map.nodes) {
        size_t inner = made.total;
        for (size_t i = lane; i < ranks.size(); i += lanes) {
          const size_t length = of_rank(ranks[i]);
          append(made.runs, {parts.begin[ranks[i]] + from, inner, length});
          inner += length;
        }
        made.total += step;
      }
    }
    return made;
  }

 private:
  static void append(std::vector<Run>& runs, Run next) {
    if (next.length == 0) return;
    if (!runs.empty()) {
      Run& last = runs.back();
      if (last.begin + last.length == next.begin && last.packed + last.length == next.packed) {
        last.length += next.length;
        return;
      }
    }
    runs.push_back(next);
  }
};

}  // namespace llcoll
