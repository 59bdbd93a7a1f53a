// Ranks, launches and fibers of one simulated run, above the machine's memory.
//
// A rank's launches start in order. An ordinary launch starts when the ones before it have ended; what they did is
// visible to it and ordered before all it does (a kernel boundary: release and acquire, .sys). A dependent launch may
// start when every thread of the launch before it has triggered or exited, sees nothing of it before grid_wait(), and
// waits there for the end of that one launch only.
#pragma once

#include <memory>
#include <stdexcept>

#include "exchange_plan.h"
#include "llcoll/ll128.h"
#include "llcoll/ll_memory.h"
#include "llcoll/message.h"
#include "sim/fiber.h"
#include "sim/machine.h"
#include "sim/mix.h"
#include "sim/program.h"

namespace llcoll::sim {

inline constexpr int kMaxSimRanks = 8;
inline constexpr int kMaxThreads = 48;
inline constexpr int kMaxGrids = 160;
inline constexpr int kMaxCtas = 48;
inline constexpr size_t kStackBytes = 40 * 1024;
inline constexpr int kLineBatch = 2;  // LL128: parts of the message that one barrier serves
inline constexpr int kMaxLaneLines = 3;
inline constexpr int kDisplacedWords = 2 * kLineBatch * kMaxTileLines;

// What a kernel makes of an LLBuffer: nothing, or one of these.
enum class BufferUse : uint8_t { kNone, kAllReduce, kAllGather, kAllToAll, kRing };

class World;
struct Lane;
using Kernel = void (*)(Lane&);
enum class ScratchKind { kLl, kSentinel, kFlag, kPull, kNarrow, kLines, kCount };

struct KernelRow {
  std::string name;
  DType dtype;
  bool once;
  int ranks;  // 0: any
  Kernel kernel;
  ScratchKind scratch;
  int buffers;
  int phases;
  int unit_bytes;
  int slot_bytes;
  bool push;
  Collective collective;
  int per_line = 0;    // LL128: elements of a line
  bool lanes = false;  // LL128: eight members to a line
  BufferUse buffer = BufferUse::kNone;
  LlMode mode = LlMode::kLl;  // of an LLBuffer
  int num_parts = 0;          // of an LLBuffer
};
inline void check(bool condition, const std::string& text) {
  if (!condition) throw std::invalid_argument("llcoll._sim: " + text);
}
inline constexpr int kNumScratches = static_cast<int>(ScratchKind::kCount);

// Regions of a chunk's slots in the row's scratch.
uint32_t regions_of(const KernelRow& row, int ranks);
const KernelRow* find_row(const std::string& name, DType dtype, bool once, int ranks);
const std::vector<KernelRow>& kernel_rows();

// What one rank's launch of one call gets. Constant for the whole program.
struct Launch {
  const KernelRow* row = nullptr;
  const Scratch* scratch = nullptr;
  Message message{};
  Plan plan{};
  ExchangePlan exchange{};  // of collectives of one exchange
  Symmetric symmetric{};    // of pulls
  const SymmetricBuffer* buffer = nullptr;
  uint32_t line_slots = 0;
  ReduceOp op = ReduceOp::kSum;
  int data_call = 0;  // whose input values the input holds
};

enum class ThreadState : uint8_t { kFree, kReady, kPolling, kBarrier, kGridWait, kLineTurn, kMeeting, kTimedOut };

struct Thread {
  void* sp;
  ThreadState state;
  uint8_t member;
  int16_t grid;
  int16_t cta;         // index into ctas
  int16_t awaited;     // the launch whose end it waits for
  uint16_t line;       // whose turn it waits for
  bool together;       // LL128's lanes: what they access next is one access
  uint32_t said, got;  // in a meeting
  uint32_t part_word, part[4];
  bool has_looked;     // since its last poll
  uint32_t looked_at;  // the number of stores then
  uint8_t channel;
  bool watch_all;
  bool waited;  // grid_wait() is behind it
  bool triggered;
  uint8_t num_watched;
  uint16_t watched[Machine::kMaxWatched];
  uint32_t watch_sum;
  Ordering order;
};

struct CtaState {
  uint8_t size, arrived, value, result;
  bool used;
  View view;
  uint64_t board[2 * kMaxSimRanks];     // of pulls
  uint32_t displaced[kDisplacedWords];  // of LL128
  uint8_t met[kMaxLaneLines + 1];       // lanes that came to a meeting of a line, or of all
};

struct GridState {
  int16_t rank, call, before;  // before: the launch it may wait for
  uint8_t alive, untriggered;
  bool started, complete, failed;
  uint16_t start_view;
  View done;
};

struct RankState {
  View carried;  // what ended launches have done and seen
  int16_t next_call, last_grid;
};

class World final : public Chooser {
 public:
  explicit World(const Program& program);
  ~World();
  World(const World&) = delete;

  Outcome run_random_schedule(uint64_t seed, std::vector<std::string>* trace = nullptr);

  // The explorer's steps: reset, then advance() until 0; advance gives the number of choices open.
  void begin(std::vector<std::string>* trace = nullptr);
  uint32_t advance();
  void take(uint32_t choice) { choice_ = choice; }
  void save(std::vector<char>& to) const;
  void load_state(const std::vector<char>& from);
  uint64_t hash() const;
  bool pruned() const { return pruned_; }
  Outcome outcome() const { return outcome_; }
  void explore_mode() { exploring_ = true; }

  // For the policies, on the fiber of `thread`.
  uint32_t choose(ChoiceKind kind, uint32_t n) override;
  ThreadState yield(Thread& thread, ThreadState state);  // the state it was resumed in
  bool poll_failed(Thread& thread);                      // true: this wait gives up
  // Lanes of one line, or (line = kMaxLaneLines) of the CTA, come together: no order of memory. The last one runs
  // on_last(threads in order of members) before any goes on.
  template <class F>
  void meet(Thread& thread, int line, F&& on_last) {
    CtaState& cta = ctas_[thread.cta];
    const bool all = line == kMaxLaneLines;
    if (++cta.met[line] < (all ? cta.size : kLineParts)) {
      yield(thread, ThreadState::kMeeting);
      return;
    }
    cta.met[line] = 0;
    Thread* members[kMaxLaneLines * kLineParts];
    const int first = all ? 0 : line * kLineParts;
    const int count = all ? cta.size : kLineParts;
    for (int i = 0; i < top_thread_; ++i) {
      Thread& other = threads_[i];
      const int at = other.member - first;
      if (other.state != ThreadState::kFree && other.cta == thread.cta && at >= 0 && at < count) members[at] = &other;
    }
    on_last(members);
    for (int i = 0; i < count; ++i) members[i]->state = ThreadState::kReady;
  }
  static World& current();
  bool barrier(Thread& thread, bool value);
  void trigger(Thread& thread);
  void grid_wait(Thread& thread);
  uint32_t last_launch(const Thread& thread) const;
  // The launch ids would repair most of what a launch does before its wait: those mutants go without.
  bool has_launch_guard() const {
    return !is(Mutant::kNoLaunchGuard) && !is(Mutant::kNoGridWait) && !is(Mutant::kStateBeforeWait) &&
           !is(Mutant::kSendBeforeWait) && !is(Mutant::kOneThreadNoWait);
  }
  void await_end(Thread& thread, uint32_t launch);
  void fail(Verdict verdict, const std::string& text);
  void give_up(Thread& thread);
  void mark_failed(Thread& thread) { grids_[thread.grid].failed = true; }
  const Record* spare_record(const Thread& thread) const;
  uint32_t word_of(const void* at, size_t bytes, Thread& thread);
  bool is_raw(uint32_t word) const { return word >= user_word_ && !program_.model_user; }
  // Control words of each rank: the abort word, and records that only mutants use.
  static constexpr uint32_t kControlWords = 4 + 4 * 8;
  char* raw(uint32_t word) { return reinterpret_cast<char*>(&raw_[word - user_word_]); }
  uint32_t abort_word(int rank) const { return static_cast<uint32_t>(rank) * kControlWords; }
  // The first word of a rank's input on the stream of a call; the output lies user_words_ behind it.
  uint32_t input_word(int rank, int call) const {
    const auto stream = static_cast<uint32_t>(program_.calls[static_cast<size_t>(call)].stream);
    return user_word_ + static_cast<uint32_t>(rank) * user_stride_ + stream * 2 * user_words_;
  }
  // Where a word of the pull scratch's ready words belongs: its phase; -1: it is none.
  int ready_phase(uint32_t word) const;
  bool is_line(uint32_t word) const;
  uint32_t next_buffer_of_lines(uint32_t word) const;  // of two epochs later
  // Forced order of additions: waits until it is this rank's turn at the line, and ends the turn.
  void begin_line_turn(Thread& thread, uint32_t word);
  void end_line_turn(uint32_t word);
  uint64_t& board(const Thread& thread, int k) {
    return ctas_[thread.cta].board[k < kMaxRanks ? k : k - kMaxRanks + kMaxSimRanks];
  }
  uint32_t* displaced(const Thread& thread) { return ctas_[thread.cta].displaced; }
  // A store to all ranks goes to this address and on: no memory lies there.
  static char* multicast_base() { return reinterpret_cast<char*>(uintptr_t{1} << 46); }
  void user_kernel(Lane& lane);

  Machine& machine() { return *machine_; }
  const Program& program() const { return program_; }
  bool is(Mutant mutant) const { return mutant_ == mutant; }
  const Launch& launch_of(const Thread& thread) const {
    const GridState& grid = grids_[thread.grid];
    return launches_[grid.call * program_.ranks + grid.rank];
  }
  int rank_of(const Thread& thread) const { return grids_[thread.grid].rank; }
  int call_of(const Thread& thread) const { return grids_[thread.grid].call; }
  int num_threads() const { return program_.threads; }
  Thread& running() { return threads_[running_]; }
  void exit_thread();
  static void enter_fiber();  // where a fiber begins: the kernel of the running thread

 private:
  void lay_out();
  void fit_grids();
  void plan_calls();
  std::vector<uint32_t> initial_memory() const;
  bool start_grids();
  bool may_start(int rank) const;
  void start_grid(int rank);
  void finish_grid(int grid);
  void write_input(int rank, int call);
  void check_output(const GridState& grid);
  uint32_t user_value(uint32_t word) const { return is_raw(word) ? raw_[word - user_word_] : machine_->newest(word); }
  void join_launch(Thread& thread, int grid);
  void plan_all_reduce(int call);
  void expect_all_reduce(int call);
  void lay_out_buffer(const Call& call, const KernelRow& row);
  void empty_slots(ScratchKind kind, uint32_t* scratch) const;
  void plan_buffer(int call);
  void initial_buffers(std::vector<uint32_t>& words) const;
  void connect_buffers();
  void connect(Launch& launch, int call, int rank);
  uint32_t remap(uint32_t word) const;
  bool is_line_turn(const Thread& thread) const;
  uint32_t line_at(uint32_t word) const { return (word - scratch_word_[static_cast<int>(ScratchKind::kLines)]) / 32; }
  void plan_exchange(int call);
  uint32_t max_chunk_of(const Call& call, const KernelRow& row) const;
  CollectiveCall exchange_call(const Call& call, const KernelRow& row, int rank, std::vector<size_t>& splits) const;
  void expect_exchange(int call);
  bool is_runnable(const Thread& thread) const;
  // Other lanes wait for this one at a meeting.
  bool is_called(const Thread& thread) const {
    for (const uint8_t count : ctas_[thread.cta].met) {
      if (count != 0) return true;
    }
    return false;
  }
  int collect(int* runnable) const;
  void resume(int thread);
  void clear_late(int rank);
  void finish_if_stuck();
  uint32_t draw_thread(const int* runnable, int n);

  Program program_;
  Mutant mutant_;
  std::unique_ptr<Machine> machine_;
  std::vector<Launch> launches_;  // [call][rank]
  std::vector<Scratch> scratches_;
  std::vector<Scratch> grid_scratches_;                      // of a mutant
  std::vector<std::vector<uint32_t>> expected_;              // [call][rank * words + i]
  std::vector<uint32_t> output_bytes_;                       // [call * ranks + rank]
  std::vector<std::vector<uint32_t>> inputs_;                // [call][rank * words + i]
  uint32_t num_words_ = 0, user_word_ = 0, user_words_ = 0;  // per rank: input, then output, user_words_ each
  uint32_t user_stride_ = 0;                                 // words from one rank's input to the next one's
  uint32_t scratch_word_[static_cast<int>(ScratchKind::kCount)] = {};
  uint32_t scratch_stride_[static_cast<int>(ScratchKind::kCount)] = {};  // words from one rank's to the next one's
  BufferShape buffer_shape_{};
  LlMode buffer_mode_{};
  uint32_t buffer_word_ = 0, buffer_stride_ = 0;
  std::vector<SymmetricBuffer> buffers_;  // by rank
  ScratchShape shapes_[static_cast<int>(ScratchKind::kCount)] = {};
  uint32_t capacity_[static_cast<int>(ScratchKind::kCount)] = {};
  char* space_ = nullptr;  // addresses only: never touched
  char* stacks_ = nullptr;

  // The state of a run.
  std::vector<uint32_t> raw_;
  std::vector<uint8_t> line_turns_;  // additions so far, by line; only where their order is forced
  Thread threads_[kMaxThreads];
  CtaState ctas_[kMaxCtas];
  GridState grids_[kMaxGrids];
  RankState ranks_[kMaxSimRanks];
  int num_grids_ = 0;
  int top_thread_ = 0;  // threads from here on are free
  int running_ = -1;
  int timeouts_left_ = 0;
  int resident_ctas_ = 0;
  uint32_t steps_ = 0;

  // The driver's side.
  void* main_sp_ = nullptr;
  bool exploring_ = false;
  bool stopped_ = false;
  bool pruned_ = false;
  bool in_fiber_ = false;
  bool mid_segment_ = false;  // a fiber waits for a choice
  uint32_t open_ = 0, choice_ = 0;
  Outcome outcome_;
  Random random_{0};
  uint32_t stale_odds_ = 0, late_odds_ = 0, lag_odds_ = 0, timeout_odds_ = 0;
  uint64_t slow_threads_ = 0;
  uint32_t slow_ranks_ = 0;
  std::vector<std::string>* trace_ = nullptr;
};

// What a kernel's code holds of the simulator.
struct Lane {
  World& world;
  Thread& thread;
  const Launch& launch;
};

}  // namespace llcoll::sim
