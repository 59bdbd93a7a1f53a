// What the simulator is asked to run, and what it answers. Plain data: Python fills the one and reads the other.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "llcoll/types.h"
#include "sim/mutants.h"

namespace llcoll::sim {

// One launch on every rank, in the order of the program.
struct Call {
  std::string kernel;  // a name of the kernel table, or "user": a user's kernel (reads the output, writes the input)
  int numel = 2;
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  int channels = 1;   // CTAs
  int max_chunk = 0;  // units per epoch of one channel; 0: whatever the slots hold
  bool once = false;  // the variant that keeps its input in registers
  bool in_place = false;
  bool dependent = false;   // may start once all CTAs of the launch before it have triggered
  bool waits = true;        // a user's kernel that is dependent and never waits is legal
  int root = 0;             // broadcast, reduce
  std::vector<int> splits;  // elements of each rank's part; all_to_all: from each rank to each rank, by sender
  std::vector<int> absent;  // ranks that never make this call
  // Pulls: ranks whose input, or output, lies in the group's symmetric pool. In place one says both.
  std::vector<int> symmetric_inputs;
  std::vector<int> symmetric_outputs;
  int lines = 3;  // LL128: of a tile
  // 0 or 1, each with tensors of its own. A call on another stream than the one before waits for that one's end by an
  // event; a user's kernel does not. Ordinary launches only: a capture has one stream.
  int stream = 0;
};

struct Program {
  int ranks = 2;
  int threads = 1;  // per CTA
  int grain = 4;    // bytes that travel whole, of accesses that are not one packet: 4 or 8
  uint64_t first_epoch = 0;
  bool odd_values = false;     // some words of the input are all ones
  bool model_user = false;     // user memory is part of the memory model too
  bool early_trigger = false;  // dependents may start after a launch's own wait, not only after its last receive
  int resident = 0;            // CTAs that fit at once on the GPU that the ranks share; 0: no limit
  int timeouts = 0;            // waits that may give up although their peer is only slow
  bool inexact = false;        // values whose sum depends on the order of additions
  // LL128: the k-th addition to any line is rank add_order[k]'s; empty: as they come. What is expected is the sum in
  // `sum_order`; empty: in rank order.
  std::vector<int> add_order;
  std::vector<int> sum_order;
  uint64_t aged_epoch = 0;  // narrow LL: slots begin with the flag of this epoch, from one period of flags ago
  std::string mutant = "none";
  std::vector<Call> calls;
};

enum class Verdict { kRight, kWrongData, kHang, kBadAccess, kLimit };

struct Outcome {
  Verdict verdict = Verdict::kRight;
  std::string text;
  uint32_t steps = 0;
  uint32_t failed_calls = 0;  // that ended by the limit, as they may
};

struct RandomReport {
  uint64_t schedules = 0;
  uint64_t steps = 0;
  uint64_t failed_calls = 0;
  double seconds = 0;  // of this core
  uint64_t bad_seed = 0;
  Outcome bad;  // the first that was not right
};

struct ExploreReport {
  uint64_t states = 0;  // distinct
  uint64_t edges = 0;
  uint64_t ends = 0;  // complete runs
  uint64_t depth = 0;
  bool complete = false;
  double seconds = 0;  // of this core
  Outcome bad;
  std::vector<std::string> trace;  // of the bad run
};

RandomReport run_random(const Program& program, uint64_t first_seed, uint64_t schedules, double max_seconds);
ExploreReport explore(const Program& program, uint64_t max_states, double max_seconds);
std::vector<std::string> trace_of(const Program& program, uint64_t seed);
std::vector<std::string> kernel_names();
bool has_kernel(const std::string& name, DType dtype, bool once, int ranks);
std::vector<std::string> mutant_names();

}  // namespace llcoll::sim
