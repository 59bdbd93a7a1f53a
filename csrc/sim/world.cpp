// A run: launches, fibers, barriers, ends of calls.
#include "sim/world.h"

#include <algorithm>
#include <cstring>

namespace llcoll::sim {
namespace {

thread_local World* active = nullptr;

constexpr uint32_t kMaxSteps = 60000;

void enter_fiber() {
  World& world = *active;
  Thread& thread = world.running();
  Lane lane{world, thread, world.launch_of(thread)};
  if (lane.launch.row == nullptr) {
    world.user_kernel(lane);
  } else {
    lane.launch.row->kernel(lane);
  }
  world.exit_thread();
}

}  // namespace

void World::begin(std::vector<std::string>* trace) {
  active = this;
  machine_->reset();
  machine_->trace = trace_ = trace;
  for (int i = 0; i < top_thread_; ++i) threads_[i].state = ThreadState::kFree;
  for (CtaState& cta : ctas_) cta.used = false;
  for (int r = 0; r < program_.ranks; ++r) {
    machine_->clear(ranks_[r].carried);
    ranks_[r].next_call = 0;
    ranks_[r].last_grid = -1;
  }
  num_grids_ = top_thread_ = resident_ctas_ = 0;
  running_ = -1;
  timeouts_left_ = program_.timeouts;
  steps_ = 0;
  stopped_ = pruned_ = mid_segment_ = false;
  outcome_ = Outcome{};
}

// Runs to the next open choice of n > 1 ways and gives n; 0: the run has ended (or is pruned).
uint32_t World::advance() {
  active = this;
  for (;;) {
    if (mid_segment_) {
      mid_segment_ = false;
      resume(running_);
    } else {
      while (start_grids()) {
      }
      int runnable[kMaxThreads];
      const int n = collect(runnable);
      if (n == 0) {
        finish_if_stuck();
        if (stopped_) return 0;
        continue;
      }
      int pick = 0;
      if (n > 1) {
        if (exploring_ && open_ == 0) {
          open_ = static_cast<uint32_t>(n);
          return open_;
        }
        pick = exploring_ ? static_cast<int>(choice_) : static_cast<int>(draw_thread(runnable, n));
        open_ = 0;
      }
      resume(runnable[pick]);
    }
    if (stopped_ || pruned_) return 0;
    if (mid_segment_) return open_;
  }
}

void World::resume(int thread) {
  running_ = thread;
  in_fiber_ = true;
  llcoll_sim_switch(&main_sp_, threads_[thread].sp);
  in_fiber_ = false;
}

uint32_t World::choose(ChoiceKind kind, uint32_t n) {
  if (exploring_) {
    if (!in_fiber_) return 0;
    open_ = n;
    mid_segment_ = true;
    llcoll_sim_switch(&running().sp, main_sp_);
    open_ = 0;
    return choice_;
  }
  switch (kind) {
    case ChoiceKind::kLoad:
      return random_.one_in(stale_odds_) ? 1 + random_.below(n - 1) : 0;
    case ChoiceKind::kStore:
      return random_.one_in(late_odds_) ? 1 + random_.below(n - 1) : 0;
    case ChoiceKind::kTimeout:
      return random_.one_in(timeout_odds_) ? 1 : 0;
    default:
      return random_.below(n);
  }
}

ThreadState World::yield(Thread& thread, ThreadState state) {
  thread.state = state;
  thread.order.published = false;
  if (++steps_ > kMaxSteps) fail(Verdict::kLimit, "the run does not end");
  llcoll_sim_switch(&thread.sp, main_sp_);
  const ThreadState resumed = thread.state;
  thread.state = ThreadState::kReady;
  return resumed;
}

bool World::poll_failed(Thread& thread) {
  if (exploring_ && thread.order.stale) {
    // The same poll a little later reads no less: nothing is lost without this branch.
    pruned_ = true;
    llcoll_sim_switch(&thread.sp, main_sp_);
  }
  if (timeouts_left_ > 0 && choose(ChoiceKind::kTimeout, 2) == 1) {
    --timeouts_left_;
    return true;
  }
  thread.num_watched = static_cast<uint8_t>(machine_->num_watched());
  thread.watch_all = thread.num_watched == Machine::kMaxWatched;
  std::memcpy(thread.watched, machine_->watched(), sizeof(uint16_t) * thread.num_watched);
  thread.watch_sum = thread.watch_all ? machine_->stores() : machine_->watch_sum();
  const bool timed_out = yield(thread, ThreadState::kPolling) == ThreadState::kTimedOut;
  thread.order.stale = false;
  machine_->watch_none();
  return timed_out;
}

bool World::is_runnable(const Thread& thread) const {
  switch (thread.state) {
    case ThreadState::kReady:
    case ThreadState::kTimedOut:
      return true;
    case ThreadState::kPolling:
      return thread.order.stale ||
             (thread.watch_all ? machine_->stores() : machine_->sum_of(thread.watched, thread.num_watched)) !=
                 thread.watch_sum;
    case ThreadState::kGridWait:
      return grids_[thread.awaited].complete;
    default:
      return false;
  }
}

int World::collect(int* runnable) const {
  int n = 0;
  for (int i = 0; i < top_thread_; ++i) {
    if (is_runnable(threads_[i])) runnable[n++] = i;
  }
  return n;
}

uint32_t World::draw_thread(const int* runnable, int n) {
  uint32_t pick = random_.below(static_cast<uint32_t>(n));
  for (int i = 0; i < 4; ++i) {
    const Thread& thread = threads_[runnable[pick]];
    const bool slow = (slow_ranks_ >> rank_of(thread) & 1) != 0 || (slow_threads_ >> runnable[pick] & 1) != 0;
    if (!slow || lag_odds_ == 0 || random_.one_in(lag_odds_)) break;
    pick = random_.below(static_cast<uint32_t>(n));
  }
  return pick;
}

// Nobody can go on: all calls are over, or the limit of a wait comes, or this is a hang.
void World::finish_if_stuck() {
  std::string waiting;
  for (int i = 0; i < top_thread_; ++i) {
    Thread& thread = threads_[i];
    if (thread.state == ThreadState::kFree) continue;
    if (thread.state == ThreadState::kPolling && program_.timeouts > 0) {
      thread.state = ThreadState::kTimedOut;
      return;
    }
    waiting += " rank " + std::to_string(rank_of(thread)) + " call " + std::to_string(call_of(thread)) + " CTA " +
               std::to_string(thread.channel) + " thread " + std::to_string(thread.member) +
               (thread.state == ThreadState::kPolling ? " polls;" : " waits;");
  }
  bool all_called = true;
  for (int r = 0; r < program_.ranks; ++r) all_called &= ranks_[r].next_call == int(program_.calls.size());
  stopped_ = true;
  if (waiting.empty() && all_called) return;
  outcome_ = {Verdict::kHang, "hang:" + (waiting.empty() ? std::string(" a launch cannot start") : waiting), steps_, 0};
}

bool World::barrier(Thread& thread, bool value) {
  if (program_.threads == 1) return value;
  CtaState& cta = ctas_[thread.cta];
  if (cta.arrived == 0) {
    cta.value = 0;
    machine_->clear(cta.view);
  }
  cta.value |= static_cast<uint8_t>(value);
  machine_->join(cta.view, thread.order.current);
  if (++cta.arrived < cta.size) {
    yield(thread, ThreadState::kBarrier);
  } else {
    cta.arrived = 0;
    cta.result = cta.value;
    for (int i = 0; i < top_thread_; ++i) {
      Thread& other = threads_[i];
      if (other.state == ThreadState::kFree || other.cta != thread.cta) continue;
      machine_->join(other.order.current, cta.view);
      other.order.published = true;
      other.state = ThreadState::kReady;
    }
  }
  return cta.result != 0;
}

void World::trigger(Thread& thread) {
  if (thread.triggered) return;
  thread.triggered = true;
  --grids_[thread.grid].untriggered;
  thread.order.published = true;
}

// What the launch before did becomes visible, and is released by this thread's stores from here on; what this thread
// itself did before is not.
void World::grid_wait(Thread& thread) {
  if (thread.waited) return;
  if (is(Mutant::kNoGridWait) || (is(Mutant::kOneThreadNoWait) && thread.member != 0)) {
    thread.waited = true;
    return;
  }
  const int before = grids_[thread.grid].before;
  if (before >= 0) join_launch(thread, before);
  thread.waited = true;
}

void World::join_launch(Thread& thread, int grid) {
  thread.awaited = static_cast<int16_t>(grid);
  if (!grids_[grid].complete) yield(thread, ThreadState::kGridWait);
  View released;
  machine_->copy(released, machine_->kept(thread.order.released));
  machine_->join(released, grids_[grid].done);
  machine_->join(thread.order.current, grids_[grid].done);
  thread.order.released = machine_->keep(released);
  thread.order.published = true;
}

// The id of the launch that wrote this channel's record last and may still be at work; 0: none. As the launcher has it.
uint32_t World::last_launch(const Thread& thread) const {
  const int call = call_of(thread), rank = rank_of(thread);
  if (!program_.calls[call].dependent) return 0;
  const Launch& own = launch_of(thread);
  for (int k = call - 1; k >= 0; --k) {
    const Launch& other = launches_[k * program_.ranks + rank];
    const auto& absent = program_.calls[k].absent;
    if (other.row == nullptr || other.row->scratch != own.row->scratch) continue;
    if (program_.calls[k].channels <= thread.channel) continue;
    if (std::find(absent.begin(), absent.end(), rank) == absent.end()) return static_cast<uint32_t>(k) + 1;
  }
  return 0;
}

void World::await_end(Thread& thread, uint32_t launch) {
  for (int g = 0; g < num_grids_; ++g) {
    if (grids_[g].rank == rank_of(thread) && grids_[g].call == static_cast<int>(launch) - 1) join_launch(thread, g);
  }
}

void World::give_up(Thread& thread) {
  mark_failed(thread);
  const uint32_t word = 1u + static_cast<uint32_t>(rank_of(thread));
  for (int r = 0; r < program_.ranks; ++r) machine_->store(thread.order, abort_word(r), 1, &word, Store::kStrong);
}

void World::fail(Verdict verdict, const std::string& text) {
  if (!stopped_) outcome_ = {verdict, text, steps_, 0};
  stopped_ = true;
  if (!in_fiber_) return;
  void* nowhere;
  llcoll_sim_switch(&nowhere, main_sp_);
}

uint32_t World::word_of(const void* at, size_t bytes, Thread& thread) {
  const auto offset = static_cast<uint64_t>(static_cast<const char*>(at) - space_);
  if (offset + bytes > uint64_t{num_words_} * 4 || (offset % 4 != 0 && offset / 4 < user_word_)) {
    fail(Verdict::kBadAccess, "rank " + std::to_string(rank_of(thread)) + " accesses what is no memory of the group's");
  }
  if (trace_) {
    machine_->trace_prefix = "rank " + std::to_string(rank_of(thread)) + " call " + std::to_string(call_of(thread)) +
                             " CTA " + std::to_string(thread.channel) + " thread " + std::to_string(thread.member);
  }
  if (machine_->overflow() != nullptr) fail(Verdict::kLimit, machine_->overflow());
  return static_cast<uint32_t>(offset / 4);
}

bool World::may_start(int rank) const {
  const RankState& state = ranks_[rank];
  if (state.next_call == int(program_.calls.size())) return false;
  const Call& call = program_.calls[state.next_call];
  if (program_.resident > 0 && resident_ctas_ + call.channels > program_.resident) return false;
  if (state.last_grid < 0) return true;
  if (call.dependent) return grids_[state.last_grid].untriggered == 0;
  for (int g = 0; g < num_grids_; ++g) {
    if (grids_[g].rank == rank && !grids_[g].complete) return false;
  }
  return true;
}

bool World::start_grids() {
  bool any = false;
  const int first = exploring_ ? 0 : static_cast<int>(random_.below(static_cast<uint32_t>(program_.ranks)));
  for (int i = 0; i < program_.ranks; ++i) {
    const int rank = (first + i) % program_.ranks;
    if (!may_start(rank)) continue;
    start_grid(rank);
    any = true;
  }
  return any;
}

void World::start_grid(int rank) {
  RankState& state = ranks_[rank];
  const int call = state.next_call++;
  const Call& spec = program_.calls[call];
  for (const int absent : spec.absent) {
    if (absent == rank) return;
  }
  const int idx = num_grids_++;
  GridState& grid = grids_[idx];
  const int before = state.last_grid;
  machine_->clear(grid.done);
  grid.started = true;
  grid.complete = grid.failed = false;
  grid.rank = static_cast<int16_t>(rank);
  grid.call = static_cast<int16_t>(call);
  grid.before = static_cast<int16_t>(spec.dependent ? before : -1);
  grid.alive = grid.untriggered = static_cast<uint8_t>(spec.channels * program_.threads);
  if (spec.kernel != "user" && launches_[call * program_.ranks + rank].data_call == call) write_input(rank, call);
  // A dependent launch sees what the launch before it saw when it started.
  grid.start_view = spec.dependent && before >= 0 ? grids_[before].start_view : machine_->keep(state.carried);
  state.last_grid = static_cast<int16_t>(idx);
  resident_ctas_ += spec.channels;
  if (is(Mutant::kLateClear) && call == 0 && rank == program_.ranks - 1) clear_late(rank);
  int cta = 0;
  for (int c = 0; c < spec.channels; ++c) {
    while (ctas_[cta].used) ++cta;
    ctas_[cta].used = true;
    ctas_[cta].arrived = ctas_[cta].value = ctas_[cta].result = 0;
    ctas_[cta].size = static_cast<uint8_t>(program_.threads);
    for (int m = 0; m < program_.threads; ++m) {
      int t = 0;
      while (t < kMaxThreads && threads_[t].state != ThreadState::kFree) ++t;
      if (t == kMaxThreads) {
        fail(Verdict::kLimit, "too many threads");
        return;
      }
      if (t >= top_thread_) top_thread_ = t + 1;
      Thread& thread = threads_[t];
      thread.watch_all = thread.triggered = false;
      thread.num_watched = 0;
      thread.order.published = thread.order.stale = false;
      machine_->clear(thread.order.pending);
      machine_->clear(thread.order.streamed);
      thread.state = ThreadState::kReady;
      thread.member = static_cast<uint8_t>(m);
      thread.grid = static_cast<int16_t>(idx);
      thread.cta = static_cast<int16_t>(cta);
      thread.channel = static_cast<uint8_t>(c);
      thread.waited = !spec.dependent;
      machine_->copy(thread.order.current, machine_->kept(grid.start_view));
      thread.order.released = grid.start_view;
      char* top = stacks_ + (static_cast<size_t>(t) + 1) * kStackBytes;
      thread.sp = make_fiber(top, enter_fiber);
    }
  }
}

void World::exit_thread() {
  Thread& thread = running();
  GridState& grid = grids_[thread.grid];
  trigger(thread);
  machine_->join(grid.done, thread.order.current);
  machine_->join(grid.done, thread.order.pending);
  machine_->join(grid.done, thread.order.streamed);
  thread.state = ThreadState::kFree;
  bool cta_ends = true;
  for (int i = 0; i < top_thread_; ++i) {
    cta_ends &= threads_[i].state == ThreadState::kFree || threads_[i].cta != thread.cta;
  }
  if (cta_ends) {
    ctas_[thread.cta].used = false;
    --resident_ctas_;
  }
  if (--grid.alive == 0) finish_grid(thread.grid);
  void* nowhere;
  llcoll_sim_switch(&nowhere, main_sp_);
}

void World::finish_grid(int idx) {
  GridState& grid = grids_[idx];
  grid.complete = true;
  machine_->join(ranks_[grid.rank].carried, grid.done);
  check_output(grid);
}

}  // namespace llcoll::sim
