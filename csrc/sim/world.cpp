// A run: fibers, choices, waits, barriers.
#include "sim/world.h"

#include <algorithm>
#include <cstring>

namespace llcoll::sim {
namespace {

thread_local World* active = nullptr;

constexpr uint32_t kMaxSteps = 60000;

}  // namespace

void World::enter_fiber() {
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
  std::fill(line_turns_.begin(), line_turns_.end(), uint8_t{0});
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

World& World::current() { return *active; }

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
  thread.watch_all = thread.has_looked || thread.num_watched == Machine::kMaxWatched;
  std::memcpy(thread.watched, machine_->watched(), sizeof(uint16_t) * thread.num_watched);
  thread.watch_sum = thread.watch_all ? machine_->stores() : machine_->watch_sum();
  if (thread.has_looked) thread.watch_sum = thread.looked_at;  // lanes meet between their look and this
  thread.has_looked = false;
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
      return thread.order.stale || is_called(thread) ||
             (thread.watch_all ? machine_->stores() : machine_->sum_of(thread.watched, thread.num_watched)) !=
                 thread.watch_sum;
    case ThreadState::kGridWait:
      return grids_[thread.awaited].complete;
    case ThreadState::kLineTurn:
      return is_line_turn(thread);
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

void World::give_up(Thread& thread) {
  mark_failed(thread);
  const uint32_t word = 1u + static_cast<uint32_t>(rank_of(thread));
  // Premise (time, not order): the fence behind these stores ends when everybody sees them. A pull rests on it: what
  // peers read of an input that its owner took back counts for nothing, since they look at the abort word behind it.
  const bool settles = launch_of(thread).row->scratch == ScratchKind::kPull;
  for (int r = 0; r < program_.ranks; ++r) {
    machine_->store(thread.order, abort_word(r), 1, &word, Store::kStrong);
    if (settles) machine_->settle(abort_word(r));
  }
}

void World::fail(Verdict verdict, const std::string& text) {
  if (!stopped_) outcome_ = {verdict, text, steps_, 0};
  stopped_ = true;
  if (!in_fiber_) return;
  void* nowhere;
  llcoll_sim_switch(&nowhere, main_sp_);
}

uint32_t World::word_of(const void* at, size_t bytes, Thread& thread) {
  auto offset = static_cast<uint64_t>(static_cast<const char*>(at) - space_);
  if (is(Mutant::kInPlaceEarly)) offset %= uint64_t{num_words_} * 4;  // the output by another name
  if (offset + bytes > uint64_t{num_words_} * 4 || (offset % 4 != 0 && offset / 4 < user_word_)) {
    fail(Verdict::kBadAccess, "rank " + std::to_string(rank_of(thread)) + " accesses what is no memory of the group's");
  }
  if (trace_) {
    machine_->trace_prefix = "rank " + std::to_string(rank_of(thread)) + " call " + std::to_string(call_of(thread)) +
                             " CTA " + std::to_string(thread.channel) + " thread " + std::to_string(thread.member);
  }
  if (machine_->overflow() != nullptr) fail(Verdict::kLimit, machine_->overflow());
  const auto word = static_cast<uint32_t>(offset / 4);
  return mutant_ == Mutant::kNone ? word : remap(word);
}

}  // namespace llcoll::sim
