// Before a run: where everything lies, how each call is cut, what it must give.
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "sim/values.h"
#include "sim/world.h"

namespace llcoll::sim {
namespace {

void check(bool condition, const std::string& text) {
  if (!condition) throw std::invalid_argument("llcoll._sim: " + text);
}

constexpr int kNumScratches = static_cast<int>(ScratchKind::kCount);
constexpr uint32_t kReadyBytes = sizeof(Packet);

uint32_t regions_of(const KernelRow& row, int ranks) {
  const bool exchange = row.collective != Collective::kAllReduce;
  return row.push || exchange ? push_regions(row.phases, ranks) : pull_regions(row.phases, ranks);
}

// Elements of the largest part that all ranks know of.
int largest_part(const Call& call) {
  return call.splits.empty() ? call.numel : *std::max_element(call.splits.begin(), call.splits.end());
}
// User memory that a call needs on any rank, each way: whole 8-byte units of every part.
uint32_t words_of(const Call& call, int ranks) {
  const int parts = call.kernel.find("_shot_") == std::string::npos ? ranks : 1;
  return static_cast<uint32_t>(largest_part(call) * parts * element_bytes(call.dtype) + 7) / 8 * 2;
}

}  // namespace

const KernelRow* find_row(const std::string& name, DType dtype, bool once, int ranks) {
  const KernelRow* found = nullptr;
  for (const KernelRow& row : kernel_rows()) {
    if (row.name != name || row.dtype != dtype || row.once != once) continue;
    if (row.ranks == ranks) return &row;
    if (row.ranks == 0) found = &row;
  }
  return found;
}

World::World(const Program& program) : program_(program), threads_{}, ctas_{}, grids_{}, ranks_{} {
  const auto& names = mutant_table();
  const auto found = std::find(names.begin(), names.end(), program.mutant);
  check(found != names.end(), "no mutant '" + program.mutant + "'");
  mutant_ = static_cast<Mutant>(found - names.begin());
  check(program.ranks >= 1 && program.ranks <= kMaxSimRanks, "1 to 8 ranks");
  check(program.threads >= 1 && program.threads <= 8, "1 to 8 threads");
  check(program.grain == 4 || program.grain == 8, "grain is 4 or 8");
  check(!program.calls.empty() && program.calls.size() * program.ranks <= size_t{kMaxGrids}, "too many calls, or none");
  lay_out();
  plan_calls();
  machine_ = std::make_unique<Machine>(initial_memory(), *this);
  std::vector<Ordering*> threads;
  for (Thread& thread : threads_) threads.push_back(&thread.order);
  std::vector<View*> views;
  for (CtaState& cta : ctas_) views.push_back(&cta.view);
  for (GridState& grid : grids_) views.push_back(&grid.done);
  for (RankState& rank : ranks_) views.push_back(&rank.carried);
  machine_->set_views(threads, views);
  raw_.resize(static_cast<size_t>(program.ranks) * 2 * user_words_);
  const size_t bytes = size_t{num_words_} * 4;
  void* space = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  void* stacks = mmap(nullptr, kMaxThreads * kStackBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  check(space != MAP_FAILED && stacks != MAP_FAILED, "no memory");
  space_ = static_cast<char*>(space);
  stacks_ = static_cast<char*>(stacks);
  for (size_t i = 0; i < scratches_.size(); ++i) {
    Scratch& scratch = scratches_[i];
    const int kind = static_cast<int>(i) / program.ranks % kNumScratches;
    scratch.rank = static_cast<int>(i) % program.ranks;
    scratch.shape = shapes_[kind];
    const uint32_t words = static_cast<uint32_t>(shapes_[kind].bytes() / 4);
    for (int r = 0; r < program.ranks; ++r) {
      scratch.memory[r] = space_ + size_t{4} * (scratch_word_[kind] + r * words);
    }
    find_records(scratch);
  }
  grid_scratches_.reserve(launches_.size());
  for (size_t i = 0; i < launches_.size(); ++i) {
    Launch& launch = launches_[i];
    const int rank = static_cast<int>(i) % program.ranks;
    const Call& call = program_.calls[i / program.ranks];
    if (launch.row == nullptr) continue;
    if (is(Mutant::kRegionsByGrid)) {
      Scratch& scratch = grid_scratches_.emplace_back(*launch.scratch);
      const ScratchShape& all = launch.scratch->shape;
      const auto channels = static_cast<uint32_t>(call.channels);
      scratch.shape = make_shape(all.slots_per_channel * all.num_channels / channels, channels, all.num_buffers,
                                 all.slot_bytes, all.ready_bytes, all.num_ranks);
      launch.scratch = &scratch;
    }
    const size_t input = size_t{4} * (user_word_ + rank * 2 * user_words_);
    const size_t output = call.in_place ? input : input + size_t{4} * user_words_;
    const uint64_t num_bytes = uint64_t(call.numel) * element_bytes(call.dtype);
    if (launch.row->collective != Collective::kAllReduce) {
      launch.exchange.input.data = space_ + input;
      launch.exchange.output.data = space_ + output;
      continue;
    }
    launch.message = make_message(space_ + input, space_ + output, num_bytes, element_bytes(call.dtype),
                                  launch.row->unit_bytes, true, true);
  }
}

World::~World() {
  munmap(space_, size_t{num_words_} * 4);
  munmap(stacks_, kMaxThreads * kStackBytes);
}

void World::lay_out() {
  const int ranks = program_.ranks;
  uint32_t channels = 1;
  const KernelRow* rows[kNumScratches] = {};
  int buffers[kNumScratches] = {};
  for (const Call& call : program_.calls) {
    channels = std::max(channels, static_cast<uint32_t>(call.channels));
    user_words_ = std::max(user_words_, words_of(call, ranks));
    if (call.kernel == "user") continue;
    const KernelRow* row = find_row(call.kernel, call.dtype, call.once, ranks);
    check(row != nullptr, "no kernel '" + call.kernel + "' of this type" + (call.once ? ", once" : ""));
    const int kind = static_cast<int>(row->scratch);
    rows[kind] = row;
    check(buffers[kind] == 0 || buffers[kind] == row->buffers, "kernels of one scratch differ in buffers");
    buffers[kind] = row->buffers;
    const int num_parts = row->phases == 2 ? ranks : 1;
    const uint64_t bytes = uint64_t(largest_part(call)) * element_bytes(call.dtype);
    const Plan whole = make_plan((bytes + row->unit_bytes - 1) / row->unit_bytes, num_parts,
                                 static_cast<uint32_t>(call.channels), 1u << 20);
    uint32_t chunk = whole.per_channel;
    if (call.max_chunk > 0) chunk = std::min<uint32_t>(call.max_chunk, chunk);
    capacity_[kind] = std::max(capacity_[kind], regions_of(*row, ranks) * stride_of(chunk));
  }
  check(channels <= 8, "at most 8 channels");
  num_words_ = ranks * kControlWords;
  for (int kind = 0; kind < kNumScratches; ++kind) {
    const KernelRow* row = rows[kind];
    if (row == nullptr) continue;
    shapes_[kind] = make_shape(capacity_[kind], channels, static_cast<uint32_t>(row->buffers),
                               static_cast<uint32_t>(row->slot_bytes), kReadyBytes, ranks);
    scratch_word_[kind] = num_words_;
    num_words_ += ranks * static_cast<uint32_t>(shapes_[kind].bytes() / 4);
  }
  constexpr int kLl = static_cast<int>(ScratchKind::kLl), kSentinel = static_cast<int>(ScratchKind::kSentinel);
  if (mutant_ == Mutant::kSharedScratch) {
    check(shapes_[kLl].bytes() >= shapes_[kSentinel].slots_bytes(), "shared scratch: LL must be the larger one");
    scratch_word_[kSentinel] = scratch_word_[kLl];
  }
  user_word_ = num_words_;
  num_words_ += ranks * 2 * user_words_;
}

void World::plan_calls() {
  const int ranks = program_.ranks;
  launches_.resize(program_.calls.size() * ranks);
  scratches_.resize(static_cast<size_t>(kNumScratches) * ranks);
  int data_call = 0;
  // Launches that may overlap leave the host no moment to write the input: a user's kernel does, or nobody.
  const bool user_writes = std::any_of(program_.calls.begin(), program_.calls.end(),
                                       [](const Call& c) { return c.kernel == "user" || c.dependent; });
  check(!user_writes || program_.model_user, "launches that may overlap need model_user");
  for (size_t k = 0; k < program_.calls.size(); ++k) {
    const Call& call = program_.calls[k];
    const bool user = call.kernel == "user";
    if ((user && call.waits) || !user_writes) data_call = static_cast<int>(k);
    Random random(0xC0FFEE + data_call * 7919);
    // Values depend on the call that wrote them alone.
    std::vector<uint32_t> values(static_cast<size_t>(ranks) * user_words_);
    fill_words(call.dtype, program_.odd_values, random, values.data(), static_cast<uint32_t>(values.size()));
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
    if (row->collective == Collective::kAllReduce) {
      plan_all_reduce(static_cast<int>(k));
    } else {
      plan_exchange(static_cast<int>(k));
      expect_exchange(static_cast<int>(k));
    }
  }
}

uint32_t World::max_chunk_of(const Call& call, const KernelRow& row) const {
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
  const uint32_t* values = inputs_[launches_[k * ranks].data_call].data();
  std::vector<const uint32_t*> sources;
  for (int rank = 0; rank < ranks; ++rank) sources.push_back(values + size_t(rank) * user_words_);
  for (int rank = 0; rank < ranks; ++rank) {
    Plan& plan = launches_[k * ranks + rank].plan;
    plan = make_plan(units, row.phases == 2 ? ranks : 1, static_cast<uint32_t>(call.channels), max_chunk);
    check(!call.once || (plan.num_chunks == 1 && plan.per_channel <= uint32_t(program_.threads)),
          "once: more units than threads");
    output_bytes_[k * ranks + rank] = static_cast<uint32_t>(bytes);
    reduce_words(call.dtype, call.op, sources, &expected_[k][size_t(rank) * user_words_], user_words_);
  }
}

std::vector<uint32_t> World::initial_memory() const {
  std::vector<uint32_t> words(num_words_);
  for (int kind = 0; kind < kNumScratches; ++kind) {
    const ScratchShape& shape = shapes_[kind];
    if (shape.num_ranks == 0) continue;
    const uint32_t rank_words = static_cast<uint32_t>(shape.bytes() / 4);
    for (int rank = 0; rank < program_.ranks; ++rank) {
      uint32_t* scratch = &words[scratch_word_[kind] + rank * rank_words];
      if (kind == static_cast<int>(ScratchKind::kSentinel) && mutant_ != Mutant::kSharedScratch) {
        std::fill(scratch, scratch + shape.slots_bytes() / 4, kSentinelWord);
      }
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
