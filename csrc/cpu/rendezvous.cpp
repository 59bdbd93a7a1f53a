#include "cpu/rendezvous.h"

#include <exception>
#include <map>

#include "check.h"

namespace llcoll {
namespace {

constexpr size_t kMaxTextBytes = 2000;

struct Outcome {
  bool ok = false;
  std::string step;
  std::string text;
};

// On the wire: 'o' or 'e', the step, a zero byte, the text.
std::string encode(const Outcome& outcome) {
  return (outcome.ok ? 'o' : 'e') + outcome.step + '\0' + outcome.text.substr(0, kMaxTextBytes);
}

Outcome decode(const std::string& bytes, const std::string& step) {
  const size_t end = bytes.find('\0');
  if (bytes.empty() || (bytes[0] != 'o' && bytes[0] != 'e') || end == std::string::npos) {
    return {false, step, concat("sent ", bytes.size(), " bytes that are not an outcome")};
  }
  return {bytes[0] == 'o', bytes.substr(1, end - 1), bytes.substr(end + 1)};
}

// `what` once for all ranks that share it, in the order of their first rank.
std::string join(const std::vector<std::pair<int, std::string>>& texts) {
  std::map<std::string, std::vector<int>> ranks_of;
  for (const auto& [rank, text] : texts) ranks_of[text].push_back(rank);
  std::string joined;
  for (const auto& [rank, text] : texts) {
    if (ranks_of[text].front() != rank) continue;
    joined += concat(joined.empty() ? "" : "; ", rank_list(ranks_of[text]), ": ", text);
  }
  return joined;
}

}  // namespace

std::string rank_list(const std::vector<int>& ranks) {
  std::string list = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t first = 0; first < ranks.size();) {
    size_t last = first;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    list += concat(first == 0 ? "" : ", ", ranks[first]);
    if (last > first) list += concat(last == first + 1 ? ", " : "-", ranks[last]);
    first = last + 1;
  }
  return list;
}

std::vector<std::string> gather(const AllGather& all_gather, int world_size, const std::string& own) {
  std::vector<std::string> all = all_gather(own);
  check_that(all.size() == static_cast<size_t>(world_size), "the bootstrap all_gather gave ", all.size(),
             " answers for world size ", world_size);
  return all;
}

void agree(const AllGather& all_gather, int rank, const std::string& step, const std::function<void()>& fn) {
  Outcome own{true, step, ""};
  try {
    fn();
  } catch (const std::exception& error) {
    own = {false, step, without_prefix(error.what())};
  } catch (...) {
    own = {false, step, "an exception that is not a std::exception"};
  }

  std::vector<std::string> all;
  try {
    all = all_gather(encode(own));
  } catch (const std::exception& error) {
    // The cause must not be lost behind the peers' absence.
    check_that(own.ok, "set-up failed in ", step, ": rank ", rank, ": ", own.text,
               "; and the other ranks could not be told: ", without_prefix(error.what()));
    throw;
  }
  check_that(rank >= 0 && static_cast<size_t>(rank) < all.size(), "the bootstrap all_gather gave ", all.size(),
             " answers to rank ", rank);

  // From here on everything follows from `all` alone, which is the same on every rank: so is the text.
  std::vector<std::pair<int, std::string>> failures, steps;
  bool same_step = true;
  std::string first_step = step;
  for (size_t peer = 0; peer < all.size(); ++peer) {
    const Outcome outcome = decode(all[peer], first_step);
    if (peer == 0) first_step = outcome.step;
    if (!outcome.ok) failures.emplace_back(static_cast<int>(peer), outcome.text);
    steps.emplace_back(static_cast<int>(peer), "in step '" + outcome.step + "'");
    same_step = same_step && outcome.step == first_step;
  }
  check_that(failures.empty(), "set-up failed in ", first_step, ": ", join(failures));
  check_that(same_step, "set-up failed: the ranks make different calls: ", join(steps));
}

}  // namespace llcoll
