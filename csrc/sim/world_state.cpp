// User memory, ends of calls, and the state as bytes for the explorer.
#include <cstring>

#include "sim/world.h"

namespace llcoll::sim {

// By the host, between launches.
void World::write_input(int rank, int call) {
  const uint32_t first = input_word(rank, call);
  const uint32_t* values = inputs_[call].data() + size_t{user_words_} * rank;
  if (!program_.model_user) {
    std::memcpy(raw(first), values, 4u * user_words_);
    return;
  }
  Ordering host{};
  machine_->copy(host.current, ranks_[rank].carried);
  for (uint32_t i = 0; i < user_words_; ++i) {
    machine_->store(host, first + i, 1, values + i, Store::kPlain);
  }
  machine_->copy(ranks_[rank].carried, host.current);
}

void World::user_kernel(Lane& lane) {
  Thread& thread = lane.thread;
  const int rank = rank_of(thread), call = call_of(thread);
  trigger(thread);
  if (!program_.calls[call].waits) return;  // it never touches the launches before, and tells nobody
  grid_wait(thread);
  if (thread.member != 0 || thread.channel != 0) return;
  const uint32_t input = input_word(rank, call);
  yield(thread, ThreadState::kReady);
  int last = call - 1;
  const auto is_other = [&](const Call& c) { return c.kernel == "user" || c.stream != program_.calls[call].stream; };
  while (last >= 0 && is_other(program_.calls[last])) --last;
  if (last >= 0) {
    const uint32_t output = program_.calls[last].in_place ? input : input + user_words_;
    const uint32_t bytes = output_bytes_[last * program_.ranks + rank];
    for (uint32_t i = 0; i < bytes / 4; ++i) {
      uint32_t word;
      machine_->load(thread.order, output + i, 1, false, &word);
      if (word != expected_[last][rank * user_words_ + i]) {
        fail(Verdict::kWrongData, "rank " + std::to_string(rank) + " reads another result after call " +
                                      std::to_string(last) + " in element " + std::to_string(i));
      }
    }
  }
  for (uint32_t i = 0; i < user_words_; ++i) {
    machine_->store(thread.order, input + i, 1, inputs_[call].data() + size_t{user_words_} * rank + i, Store::kPlain);
  }
}

void World::check_output(const GridState& grid) {
  const Call& call = program_.calls[grid.call];
  if (call.kernel == "user") return;
  if (grid.failed) {
    ++outcome_.failed_calls;
    return;
  }
  const uint32_t input = input_word(grid.rank, grid.call);
  const uint32_t output = call.in_place ? input : input + user_words_;
  const uint32_t bytes = output_bytes_[grid.call * program_.ranks + grid.rank];
  for (uint32_t i = 0; i < (bytes + 3) / 4; ++i) {
    const uint32_t mask = bytes - 4 * i >= 4 ? ~0u : (1u << 8 * (bytes - 4 * i)) - 1;
    const uint32_t got = user_value(output + i), want = expected_[grid.call][grid.rank * user_words_ + i];
    char text[120];
    if (((got ^ want) & mask) == 0) {
      // What another rank wrote must be visible to whatever this rank runs next.
      if (is_raw(output + i) || machine_->is_settled(ranks_[grid.rank].carried, output + i)) continue;
      std::snprintf(text, sizeof text, "rank %d call %d word %u may still be read as it was", grid.rank, grid.call, i);
      fail(Verdict::kWrongData, text);
      return;
    }
    std::snprintf(text, sizeof text, "rank %d call %d word %u is %08x instead of %08x", grid.rank, grid.call, i, got,
                  want);
    fail(Verdict::kWrongData, text);
    return;
  }
}

// The clear of a rank's scratch after its peers may have begun to send.
void World::clear_late(int rank) {
  Ordering host{};
  for (int kind = 0; kind < static_cast<int>(ScratchKind::kCount); ++kind) {
    if (shapes_[kind].num_ranks == 0) continue;
    const uint32_t first = scratch_word_[kind] + static_cast<uint32_t>(rank) * scratch_stride_[kind];
    const uint32_t end = first + static_cast<uint32_t>(shapes_[kind].slots_bytes() / 4);
    const int words = kind == static_cast<int>(ScratchKind::kLl) ? 4 : program_.grain / 4;
    for (uint32_t word = first; word < end; word += static_cast<uint32_t>(words)) {
      machine_->store(host, word, words, machine_->initial(word), Store::kStrong);
    }
  }
}

uint64_t World::hash() const {
  uint64_t h = machine_->hash();
  for (int i = 0; i < top_thread_; ++i) {
    const Thread& t = threads_[i];
    if (t.state == ThreadState::kFree) continue;
    const char* top = stacks_ + (static_cast<size_t>(i) + 1) * kStackBytes;
    h = mix_bytes(t.sp, static_cast<size_t>(top - static_cast<const char*>(t.sp)), h);
    h = mix(h, machine_->hash_thread(t.order));
    // Woken or not is what counts of the objects that a poll read.
    h = mix(h, uint64_t(i) << 32 | uint64_t(is_runnable(t)) << 16 | uint64_t(t.state) << 8 | uint64_t(t.waited) << 1 |
                   uint64_t(t.triggered));
  }
  for (const CtaState& cta : ctas_) {
    if (cta.used && cta.arrived != 0) h = mix(mix(h, cta.arrived * 4u + cta.value * 2u), machine_->hash_view(cta.view));
    if (!cta.used) continue;
    h = mix(h, cta.result);
    if (shapes_[static_cast<int>(ScratchKind::kPull)].num_ranks != 0) h = mix_bytes(cta.board, sizeof cta.board, h);
    if (!line_turns_.empty()) h = mix_bytes(cta.displaced, sizeof cta.displaced, h);
  }
  for (int r = 0; r < program_.ranks; ++r) {
    h = mix(h, machine_->hash_view(ranks_[r].carried));
    h = mix(h, uint64_t(ranks_[r].next_call) << 32);
  }
  for (int g = 0; g < num_grids_; ++g) {
    const GridState& grid = grids_[g];
    if (grid.complete) continue;
    h = mix(mix(h, machine_->hash_view(grid.done)), uint64_t(grid.rank) << 48 | uint64_t(grid.call) << 32 |
                                                        uint64_t(grid.alive) << 8 | uint64_t(grid.untriggered) << 1 |
                                                        uint64_t(grid.failed));
  }
  if (!program_.model_user) h = mix_bytes(raw_.data(), raw_.size() * 4, h);
  h = mix_bytes(line_turns_.data(), line_turns_.size(), h);
  h = mix(h, uint64_t(timeouts_left_) << 8 | uint64_t(mid_segment_));
  return mid_segment_ ? mix(h, static_cast<uint64_t>(running_)) : h;
}

void World::save(std::vector<char>& to) const {
  to.clear();
  const auto put = [&](const void* from, size_t bytes) {
    const char* first = static_cast<const char*>(from);
    to.insert(to.end(), first, first + bytes);
  };
  const int32_t head[] = {num_grids_,
                          top_thread_,
                          running_,
                          timeouts_left_,
                          resident_ctas_,
                          static_cast<int32_t>(steps_),
                          mid_segment_,
                          static_cast<int32_t>(open_),
                          static_cast<int32_t>(outcome_.failed_calls)};
  put(head, sizeof head);
  put(raw_.data(), raw_.size() * 4);
  put(line_turns_.data(), line_turns_.size());
  for (const CtaState& cta : ctas_) {
    put(&cta.used, sizeof cta.used);
    if (cta.used) put(&cta, sizeof cta);
  }
  put(grids_, sizeof(GridState) * num_grids_);
  put(ranks_, sizeof(RankState) * program_.ranks);
  for (int i = 0; i < top_thread_; ++i) {
    put(&threads_[i], sizeof(Thread));
    if (threads_[i].state == ThreadState::kFree) continue;
    const char* top = stacks_ + (static_cast<size_t>(i) + 1) * kStackBytes;
    put(threads_[i].sp, static_cast<size_t>(top - static_cast<const char*>(threads_[i].sp)));
  }
  machine_->save(to);
}

void World::load_state(const std::vector<char>& from) {
  const char* at = from.data();
  const auto get = [&](void* to, size_t bytes) {
    std::memcpy(to, at, bytes);
    at += bytes;
  };
  int32_t head[9];
  get(head, sizeof head);
  num_grids_ = head[0];
  const int old_top = top_thread_;
  top_thread_ = head[1];
  for (int i = top_thread_; i < old_top; ++i) threads_[i].state = ThreadState::kFree;
  running_ = head[2];
  timeouts_left_ = head[3];
  resident_ctas_ = head[4];
  steps_ = static_cast<uint32_t>(head[5]);
  mid_segment_ = head[6] != 0;
  open_ = static_cast<uint32_t>(head[7]);
  outcome_ = Outcome{};
  outcome_.failed_calls = static_cast<uint32_t>(head[8]);
  stopped_ = pruned_ = false;
  get(raw_.data(), raw_.size() * 4);
  get(line_turns_.data(), line_turns_.size());
  for (CtaState& cta : ctas_) {
    get(&cta.used, sizeof cta.used);
    if (cta.used) get(&cta, sizeof cta);
  }
  get(grids_, sizeof(GridState) * num_grids_);
  get(ranks_, sizeof(RankState) * program_.ranks);
  for (int i = 0; i < top_thread_; ++i) {
    get(&threads_[i], sizeof(Thread));
    if (threads_[i].state == ThreadState::kFree) continue;
    const char* top = stacks_ + (static_cast<size_t>(i) + 1) * kStackBytes;
    get(threads_[i].sp, static_cast<size_t>(top - static_cast<const char*>(threads_[i].sp)));
  }
  machine_->load_state(at);
}

}  // namespace llcoll::sim
