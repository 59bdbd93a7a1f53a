// Launches: when one may start, what it waits for, how it ends.
#include <algorithm>
#include <cstring>

#include "sim/world.h"

namespace llcoll::sim {

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

bool World::may_start(int rank) const {
  const RankState& state = ranks_[rank];
  if (state.next_call == int(program_.calls.size())) return false;
  const Call& call = program_.calls[state.next_call];
  if (program_.resident > 0 && resident_ctas_ + call.channels > program_.resident) return false;
  if (state.last_grid < 0) return true;
  if (call.dependent) return grids_[state.last_grid].untriggered == 0;
  for (int g = 0; g < num_grids_; ++g) {
    if (grids_[g].rank != rank || grids_[g].complete) continue;
    const Call& other = program_.calls[grids_[g].call];
    const bool events = call.kernel != "user" && other.kernel != "user" && !is(Mutant::kNoStreamEvent);
    if (other.stream == call.stream || events) return false;
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
    std::memset(ctas_[cta].board, 0, sizeof ctas_[cta].board);
    std::memset(ctas_[cta].met, 0, sizeof ctas_[cta].met);
    std::memset(ctas_[cta].displaced, 0, sizeof ctas_[cta].displaced);
    for (int m = 0; m < program_.threads; ++m) {
      int t = 0;
      while (t < kMaxThreads && threads_[t].state != ThreadState::kFree) ++t;
      if (t == kMaxThreads) {
        fail(Verdict::kLimit, "too many threads");
        return;
      }
      if (t >= top_thread_) top_thread_ = t + 1;
      Thread& thread = threads_[t];
      thread.watch_all = thread.triggered = thread.has_looked = false;
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
