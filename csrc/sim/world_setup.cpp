// Before a run: where everything lies.
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "sim/values.h"
#include "sim/world.h"

namespace llcoll::sim {
namespace {

constexpr uint32_t kReadyBytes = sizeof(Packet);

// Slots of one channel in which a chunk of an LL128 call has room.
uint32_t line_slots_for(const Call& call, const KernelRow& row, uint32_t chunk, int ranks) {
  check(call.lines >= 2 && call.lines <= kMaxTileLines, "a tile has 2 to 64 lines");
  const Tile tile(static_cast<uint32_t>(call.lines), static_cast<uint32_t>(row.per_line));
  uint32_t slots = kStrideUnits;
  while (!fits_lines(make_shape(slots, 1, 3, sizeof(LinePart), 0, ranks), chunk, tile, uint32_t(row.unit_bytes))) {
    slots += kStrideUnits;
  }
  return slots;
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
  check(program.threads >= 1 && program.threads <= kMaxLaneLines * kLineParts, "1 to 24 threads");
  check(program.grain == 4 || program.grain == 8, "grain is 4 or 8");
  check(!program.calls.empty() && program.calls.size() * program.ranks <= size_t{kMaxGrids}, "too many calls, or none");
  fit_grids();
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
  raw_.resize(static_cast<size_t>(program.ranks) * user_stride_);
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
    for (int r = 0; r < program.ranks; ++r) {
      scratch.memory[r] = space_ + size_t{4} * (scratch_word_[kind] + static_cast<uint32_t>(r) * scratch_stride_[kind]);
    }
    scratch.multicast = multicast_base();
    find_records(scratch);
  }
  connect_buffers();
  grid_scratches_.reserve(launches_.size());
  for (size_t i = 0; i < launches_.size(); ++i) {
    Launch& launch = launches_[i];
    const int rank = static_cast<int>(i) % program.ranks;
    const int k = static_cast<int>(i) / program.ranks;
    const Call& call = program_.calls[k];
    if (launch.row == nullptr) continue;
    if (is(Mutant::kRegionsByGrid)) {
      Scratch& scratch = grid_scratches_.emplace_back(*launch.scratch);
      const ScratchShape& all = launch.scratch->shape;
      const auto channels = static_cast<uint32_t>(call.channels);
      scratch.shape = make_shape(all.slots_per_channel * all.num_channels / channels, channels, all.num_buffers,
                                 all.slot_bytes, all.ready_bytes, all.num_ranks);
      launch.scratch = &scratch;
    }
    connect(launch, k, rank);
  }
}

// Where one rank's input and output lie.
void World::connect(Launch& launch, int k, int rank) {
  const Call& call = program_.calls[k];
  const size_t input = size_t{4} * input_word(rank, k);
  size_t output = call.in_place ? input : input + size_t{4} * user_words_;
  if (launch.row->scratch == ScratchKind::kPull) {
    const auto is_in = [&](const std::vector<int>& ranks) {
      return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
    };
    const bool both = call.in_place && (is_in(call.symmetric_inputs) || is_in(call.symmetric_outputs));
    check(program_.model_user || (call.symmetric_inputs.empty() && call.symmetric_outputs.empty()),
          "symmetric tensors need model_user");
    launch.symmetric.pool_offset = uint64_t{4} * (user_word_ - scratch_word_[static_cast<int>(ScratchKind::kPull)]);
    const size_t pool = size_t{4} * (user_word_ + static_cast<uint32_t>(rank) * user_stride_);
    const auto place = [&](size_t at) { return static_cast<uint32_t>((at - pool) / kPlaceBytes + 1); };
    if (both || is_in(call.symmetric_inputs)) launch.symmetric.input = place(input);
    if (both || is_in(call.symmetric_outputs)) launch.symmetric.output = place(output);
  }
  if (is(Mutant::kInPlaceEarly)) output += size_t{4} * num_words_;
  const uint64_t num_bytes = uint64_t(call.numel) * element_bytes(call.dtype);
  if (launch.row->collective != Collective::kAllReduce && launch.row->buffer == BufferUse::kNone) {
    launch.exchange.input.data = space_ + input;
    launch.exchange.output.data = space_ + output;
    return;
  }
  launch.message = make_message(space_ + input, space_ + output, num_bytes, element_bytes(call.dtype),
                                launch.row->unit_bytes, true, true);
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
    if (row->buffer != BufferUse::kNone) {
      lay_out_buffer(call, *row);
      continue;
    }
    check(row->per_line == 0 || program_.threads == (row->lanes ? kLineParts * call.lines : 1),
          "LL128 runs with one member, or with 8 to a line");
    check(!row->lanes || program_.add_order.empty(), "lanes add in no forced order");
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
    const uint32_t slots =
        row->per_line != 0 ? line_slots_for(call, *row, chunk, ranks) : regions_of(*row, ranks) * stride_of(chunk);
    capacity_[kind] = std::max(capacity_[kind], slots);
  }
  check(channels <= 8, "at most 8 channels");
  user_words_ = (user_words_ + 3) / 4 * 4;  // tensors of a pool lie on 16 bytes
  const bool two_streams = std::any_of(program_.calls.begin(), program_.calls.end(), [](const Call& c) {
    check(c.stream == 0 || (c.stream == 1 && !c.dependent), "streams 0 and 1, of ordinary launches");
    return c.stream == 1;
  });
  user_stride_ = (two_streams ? 4 : 2) * user_words_;
  num_words_ = ranks * kControlWords;
  for (int kind = 0; kind < kNumScratches; ++kind) {
    const KernelRow* row = rows[kind];
    if (row == nullptr) continue;
    shapes_[kind] = make_shape(capacity_[kind], channels, static_cast<uint32_t>(row->buffers),
                               static_cast<uint32_t>(row->slot_bytes), kReadyBytes, ranks);
    scratch_word_[kind] = num_words_;
    scratch_stride_[kind] = static_cast<uint32_t>(shapes_[kind].bytes() / 4);
    if (kind == static_cast<int>(ScratchKind::kPull)) {  // the pool is as far from each rank's scratch
      scratch_stride_[kind] = std::max(scratch_stride_[kind], user_stride_);
      user_stride_ = scratch_stride_[kind];
    }
    num_words_ += static_cast<uint32_t>(ranks) * scratch_stride_[kind];
    if (kind == static_cast<int>(ScratchKind::kLines)) line_turns_.resize(ranks * scratch_stride_[kind] / 32 + 1);
  }
  constexpr int kLl = static_cast<int>(ScratchKind::kLl), kSentinel = static_cast<int>(ScratchKind::kSentinel);
  if (mutant_ == Mutant::kSharedScratch) {
    check(shapes_[kLl].bytes() >= shapes_[kSentinel].slots_bytes(), "shared scratch: LL must be the larger one");
    scratch_word_[kSentinel] = scratch_word_[kLl];
  }
  if (buffer_shape_.num_ranks != 0) {
    buffer_shape_.num_blocks = channels;
    buffer_word_ = num_words_;
    buffer_stride_ = static_cast<uint32_t>(buffer_shape_.bytes() / 4);
    num_words_ += static_cast<uint32_t>(ranks) * buffer_stride_;
  }
  user_word_ = num_words_;
  num_words_ += static_cast<uint32_t>(ranks) * user_stride_;
}

}  // namespace llcoll::sim
