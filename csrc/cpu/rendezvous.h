// Steps of set-up that succeed on every rank or fail on every rank with the same text.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace llcoll {

// Bootstrap: gives each rank's bytes in rank order. Collective, bounded by the caller's timeout; may throw.
using AllGather = std::function<std::vector<std::string>(const std::string&)>;

// all_gather, with the number of answers checked.
std::vector<std::string> gather(const AllGather& all_gather, int world_size, const std::string& own);

// Collective. Runs fn, then exchanges its outcome: returns if fn returned on every rank, else throws on every rank
// "LlcollError: set-up failed in <step>: rank 2: <text>; ranks 3, 4: <text>". fn may throw anything; a rank whose fn
// throws still takes part, so nobody waits longer than fn itself and the all_gather's own limit. What all_gather
// throws passes through (with fn's own text, if that failed too). Ranks that are in different steps get an error.
void agree(const AllGather& all_gather, int rank, const std::string& step, const std::function<void()>& fn);

// "rank 4" or "ranks 0, 2-5".
std::string rank_list(const std::vector<int>& ranks);

}  // namespace llcoll
