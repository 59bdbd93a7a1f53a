// Before a run: how each call is cut, what it must give, what memory holds.
#include <algorithm>
#include <cstring>

#include "sim/values.h"
#include "sim/world.h"

namespace llcoll::sim {

uint32_t regions_of(const KernelRow& row, int ranks) {
  const bool exchange = row.collective != Collective::kAllReduce;
  return row.push || exchange ? push_regions(row.phases, ranks) : pull_regions(row.phases, ranks);
}

// Rounding may leave the last channel without a unit in its last epoch. In a push protocol nothing would tell the peers
// that it has started that epoch: fewer channels then, as the launcher has it (csrc/cuda/launch_plan.cpp).
void World::fit_grids() {
  for (Call& call : program_.calls) {
    if (call.kernel == "user" || is(Mutant::kIdleEpoch)) continue;
    const KernelRow* row = find_row(call.kernel, call.dtype, call.once, program_.ranks);
    if (row == nullptr || !row->push || row->collective != Collective::kAllReduce) continue;
    const uint64_t bytes = uint64_t(call.numel) * element_bytes(call.dtype);
    const uint64_t units = (bytes + row->unit_bytes - 1) / row->unit_bytes;
    const uint32_t max_chunk = call.max_chunk > 0 ? static_cast<uint32_t>(call.max_chunk) : 1u << 20;
    for (; call.channels > 1; --call.channels) {
      const auto channels = static_cast<uint32_t>(call.channels);
      const Plan cut = make_plan(units, row->phases == 2 ? program_.ranks : 1, channels, max_chunk);
      if (uint64_t{channels - 1} * cut.per_channel + uint64_t{cut.num_chunks - 1} * cut.chunk < cut.part) break;
    }
  }
}

void World::plan_calls() {
  const int ranks = program_.ranks;
  launches_.resize(program_.calls.size() * ranks);
  scratches_.resize(static_cast<size_t>(kNumScratches) * ranks);
  int data_calls[2] = {-1, -1};  // by stream
  // Launches that may overlap leave the host no moment to write the input: a user's kernel does, or nobody.
  const bool user_writes = std::any_of(program_.calls.begin(), program_.calls.end(),
                                       [](const Call& c) { return c.kernel == "user" || c.dependent; });
  check(!user_writes || program_.model_user, "launches that may overlap need model_user");
  for (size_t k = 0; k < program_.calls.size(); ++k) {
    const Call& call = program_.calls[k];
    const bool user = call.kernel == "user";
    int& data_call = data_calls[call.stream];
    if (data_call < 0 || (user && call.waits) || !user_writes) data_call = static_cast<int>(k);
    Random random(0xC0FFEE + data_call * 7919);
    // Values depend on the call that wrote them alone.
    std::vector<uint32_t> values(static_cast<size_t>(ranks) * user_words_);
    fill_words(call.dtype,
               program_.inexact      ? Values::kInexact
               : program_.odd_values ? Values::kOdd
                                     : Values::kExact,
               random, values.data(), static_cast<uint32_t>(values.size()));
    inputs_.push_back(values);
    expected_.emplace_back();
    if (user) continue;
    const KernelRow* row = find_row(call.kernel, call.dtype, call.once, ranks);
    check(!program_.model_user || (element_bytes(call.dtype) == 4 && program_.grain == 4),
          "modelled user memory needs 4-byte elements and grain 4");
    output_bytes_.resize((k + 1) * ranks);
    expected_[k].resize(static_cast<size_t>(ranks) * user_words_);
    for (int rank = 0; rank < ranks; ++rank) {
      Launch& launch = launches_[k * ranks + rank];
      launch.row = row;
      launch.scratch = &scratches_[static_cast<size_t>(row->scratch) * ranks + rank];
      launch.op = call.op;
      launch.data_call = data_call;
    }
    if (row->buffer != BufferUse::kNone) {
      plan_buffer(static_cast<int>(k));
      continue;
    }
    if (row->collective == Collective::kAllReduce) {
      plan_all_reduce(static_cast<int>(k));
      expect_all_reduce(static_cast<int>(k));
    } else {
      plan_exchange(static_cast<int>(k));
      expect_exchange(static_cast<int>(k));
    }
  }
}

uint32_t World::max_chunk_of(const Call& call, const KernelRow& row) const {
  if (row.per_line != 0) return call.max_chunk > 0 ? static_cast<uint32_t>(call.max_chunk) : 1u << 20;
  const uint32_t slots = capacity_[static_cast<int>(row.scratch)];
  const uint32_t most = slots / regions_of(row, program_.ranks) / kStrideUnits * kStrideUnits;
  return call.max_chunk > 0 ? std::min(most, static_cast<uint32_t>(call.max_chunk)) : most;
}

void World::plan_all_reduce(int k) {
  const int ranks = program_.ranks;
  const Call& call = program_.calls[k];
  const KernelRow& row = *launches_[k * ranks].row;
  const uint64_t bytes = uint64_t(call.numel) * element_bytes(call.dtype);
  const uint64_t units = (bytes + row.unit_bytes - 1) / row.unit_bytes;
  const uint32_t max_chunk = max_chunk_of(call, row);
  for (int rank = 0; rank < ranks; ++rank) {
    Plan& plan = launches_[k * ranks + rank].plan;
    plan = make_plan(units, row.phases == 2 ? ranks : 1, static_cast<uint32_t>(call.channels), max_chunk);
    check(!call.once || (plan.num_chunks == 1 && plan.per_channel <= uint32_t(program_.threads)),
          "once: more units than threads");
    output_bytes_[k * ranks + rank] = static_cast<uint32_t>(bytes);
    if (row.per_line == 0) continue;
    const ScratchShape& shape = shapes_[static_cast<int>(row.scratch)];
    const Tile tile(static_cast<uint32_t>(call.lines), static_cast<uint32_t>(row.per_line));
    check(fits_lines(shape, plan.chunk, tile, static_cast<uint32_t>(row.unit_bytes)), "the lines have no room");
    launches_[k * ranks + rank].line_slots = line_slots_of(shape);
  }
}

void World::expect_all_reduce(int k) {
  const int ranks = program_.ranks;
  const Call& call = program_.calls[k];
  const uint32_t* values = inputs_[launches_[k * ranks].data_call].data();
  std::vector<const uint32_t*> sources;
  for (int i = 0; i < ranks; ++i) {
    const int rank = program_.sum_order.empty() ? i : program_.sum_order[static_cast<size_t>(i)];
    sources.push_back(values + size_t(rank) * user_words_);
  }
  for (int rank = 0; rank < ranks; ++rank) {
    reduce_words(call.dtype, call.op, sources, &expected_[k][size_t(rank) * user_words_], user_words_);
  }
}

std::vector<uint32_t> World::initial_memory() const {
  std::vector<uint32_t> words(num_words_);
  for (int kind = 0; kind < kNumScratches; ++kind) {
    const ScratchShape& shape = shapes_[kind];
    if (shape.num_ranks == 0) continue;
    for (int rank = 0; rank < program_.ranks; ++rank) {
      uint32_t* scratch = &words[scratch_word_[kind] + static_cast<uint32_t>(rank) * scratch_stride_[kind]];
      if (kind == static_cast<int>(ScratchKind::kSentinel) && mutant_ != Mutant::kSharedScratch) {
        std::fill(scratch, scratch + shape.slots_bytes() / 4, kSentinelWord);
      }
      empty_slots(static_cast<ScratchKind>(kind), scratch);
      for (uint64_t at = shape.ready_offset(0, 0, 0, 0); shape.ready_bytes != 0 && at < shape.records_offset();
           at += shape.ready_bytes) {
        std::memcpy(scratch + at / 4 + 2, &program_.first_epoch, 8);
      }
      if (kind == static_cast<int>(ScratchKind::kSentinel) && mutant_ == Mutant::kSharedScratch) continue;
      for (uint32_t channel = 0; channel < shape.num_channels; ++channel) {
        const Record record =
            Record::make(program_.first_epoch, 0, static_cast<uint32_t>(program_.first_epoch % shape.num_buffers));
        std::memcpy(scratch + shape.records_offset() / 4 + channel * 4, &record, sizeof record);
      }
    }
  }
  initial_buffers(words);
  for (int rank = 0; rank < program_.ranks; ++rank) {
    for (uint32_t channel = 0; channel < 8; ++channel) {
      const Record record = Record::make(program_.first_epoch, 0, 0);
      std::memcpy(&words[abort_word(rank) + 4 + channel * 4], &record, sizeof record);
    }
  }
  return words;
}

const Record* World::spare_record(const Thread& thread) const {
  return reinterpret_cast<const Record*>(space_ + size_t{4} * (abort_word(rank_of(thread)) + 4 + thread.channel * 4));
}

}  // namespace llcoll::sim
