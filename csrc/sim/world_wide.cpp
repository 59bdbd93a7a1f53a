// What pulls, LL128 and LLBuffer need of the world: ready words and their places, lines and whose turn it is, buffers.
#include <algorithm>
#include <cstring>

#include "sim/values.h"
#include "sim/world.h"

namespace llcoll::sim {
namespace {

constexpr int kPull = static_cast<int>(ScratchKind::kPull);
constexpr int kLines = static_cast<int>(ScratchKind::kLines);

}  // namespace

int World::ready_phase(uint32_t word) const {
  const ScratchShape& shape = shapes_[kPull];
  if (shape.num_ranks == 0 || word < scratch_word_[kPull] || word >= user_word_) return -1;
  const uint32_t offset = (word - scratch_word_[kPull]) % scratch_stride_[kPull] * 4;
  if (offset < shape.slots_bytes() || offset >= shape.records_offset()) return -1;
  const auto word_idx = static_cast<uint32_t>((offset - shape.slots_bytes()) / shape.ready_bytes);
  return static_cast<int>(word_idx / (2 * static_cast<uint32_t>(shape.num_ranks)) % kNumPhases);
}

bool World::is_line(uint32_t word) const {
  const ScratchShape& shape = shapes_[kLines];
  const uint32_t offset = (word - scratch_word_[kLines]) % scratch_stride_[kLines] * 4;
  return offset < shape.slots_bytes() && offset % shape.channel_bytes < line_slots_of(shape) * shape.slot_bytes;
}

// Accesses that a mutant sends elsewhere.
uint32_t World::remap(uint32_t word) const {
  if (is(Mutant::kOneReadyWord) && ready_phase(word) >= 0) {
    const ScratchShape& shape = shapes_[kPull];
    const auto first = static_cast<uint32_t>(shape.slots_bytes() / 4);
    const uint32_t offset = (word - scratch_word_[kPull]) % scratch_stride_[kPull] - first;
    const uint32_t parity_words = static_cast<uint32_t>(shape.num_ranks) * shape.ready_bytes / 4;
    return offset / parity_words % 2 == 1 ? word - parity_words : word;
  }
  if (is(Mutant::kOneStaging) && shapes_[kPull].num_ranks != 0 && word >= scratch_word_[kPull] && word < user_word_) {
    const ScratchShape& shape = shapes_[kPull];
    const uint32_t offset = (word - scratch_word_[kPull]) % scratch_stride_[kPull] * 4;
    return offset >= shape.buffer_bytes && offset < shape.slots_bytes() ? word - shape.buffer_bytes / 4 : word;
  }
  return word;
}

uint32_t World::next_buffer_of_lines(uint32_t word) const {
  const ScratchShape& shape = shapes_[kLines];
  const uint32_t offset = (word - scratch_word_[kLines]) % scratch_stride_[kLines];
  const auto all = static_cast<uint32_t>(shape.slots_bytes() / 4);
  return word - offset + (offset + 2 * (shape.buffer_bytes / 4)) % all;
}

void World::begin_line_turn(Thread& thread, uint32_t word) {
  if (program_.add_order.empty()) return;
  thread.line = static_cast<uint16_t>(line_at(word));
  while (!is_line_turn(thread)) yield(thread, ThreadState::kLineTurn);
}
void World::end_line_turn(uint32_t word) {
  if (!program_.add_order.empty()) ++line_turns_[line_at(word)];
}
bool World::is_line_turn(const Thread& thread) const {
  return program_.add_order[line_turns_[thread.line] % program_.add_order.size()] == rank_of(thread);
}

void World::empty_slots(ScratchKind kind, uint32_t* scratch) const {
  const ScratchShape& shape = shapes_[static_cast<int>(kind)];
  const auto end = static_cast<uint32_t>(shape.slots_bytes() / 4);
  if (kind == ScratchKind::kLines) {
    const uint32_t channel_words = shape.channel_bytes / 4;
    const uint32_t line_words = line_slots_of(shape) * shape.slot_bytes / 4;
    for (uint32_t at = 0; at < end; ++at) {
      if (at % channel_words >= line_words) scratch[at] = kSentinelWord;
    }
  }
  if (kind == ScratchKind::kNarrow && program_.aged_epoch != 0) {
    const auto flag = static_cast<uint32_t>(program_.aged_epoch % 0xFFFFFFFFu) + 1;
    for (uint32_t at = 0; at < end; at += 2) {
      scratch[at] = 0xBAD;
      scratch[at + 1] = flag;
    }
  }
}

void World::lay_out_buffer(const Call& call, const KernelRow& row) {
  const auto channels = static_cast<uint32_t>(call.channels);
  const uint32_t all = static_cast<uint32_t>(call.numel) * 4 / static_cast<uint32_t>(row.unit_bytes);
  uint32_t elements = (all + channels - 1) / channels;
  for (const Call& other : program_.calls) {  // one shape for all: its smallest chunk
    if (other.max_chunk > 0) elements = std::min(elements, static_cast<uint32_t>(other.max_chunk));
  }
  const uint32_t slot = slot_bytes(row.mode, static_cast<uint32_t>(row.unit_bytes));
  const uint32_t bytes = (elements * static_cast<uint32_t>(program_.ranks) * slot + 15) / 16 * 16;
  check(buffer_shape_.num_ranks == 0 ||
            (buffer_mode_ == row.mode && buffer_shape_.round_robin == static_cast<uint32_t>(row.num_parts)),
        "kernels of one LLBuffer differ in mode or parts");
  buffer_mode_ = row.mode;
  buffer_shape_ = {std::max(bytes, buffer_shape_.bytes_per_block), channels, static_cast<uint32_t>(row.num_parts),
                   program_.ranks};
}

void World::connect_buffers() {
  if (buffer_shape_.num_ranks == 0) return;
  buffers_.resize(static_cast<size_t>(program_.ranks));
  for (int rank = 0; rank < program_.ranks; ++rank) {
    SymmetricBuffer& buffer = buffers_[static_cast<size_t>(rank)];
    buffer.shape = buffer_shape_;
    buffer.rank = rank;
    buffer.multicast = multicast_base();
    for (int r = 0; r < program_.ranks; ++r) {
      buffer.memory[r] = space_ + size_t{4} * (buffer_word_ + static_cast<uint32_t>(r) * buffer_stride_);
    }
  }
  for (size_t i = 0; i < launches_.size(); ++i) {
    Launch& launch = launches_[i];
    if (launch.row == nullptr || launch.row->buffer == BufferUse::kNone) continue;
    launch.buffer = &buffers_[i % static_cast<size_t>(program_.ranks)];
  }
}

void World::initial_buffers(std::vector<uint32_t>& words) const {
  if (buffer_shape_.num_ranks == 0) return;
  for (int rank = 0; rank < program_.ranks; ++rank) {
    char* memory = reinterpret_cast<char*>(&words[buffer_word_ + static_cast<uint32_t>(rank) * buffer_stride_]);
    init_ll_buffer(buffer_shape_, buffer_mode_, memory);
    const uint64_t first = buffer_shape_.slots_offset(0, 0);
    const uint64_t end = buffer_shape_.slots_offset(buffer_shape_.num_parts(), 0);
    if (buffer_mode_ == LlMode::kLlNarrow && program_.aged_epoch != 0) {
      const NarrowPacket old{0xBAD, static_cast<uint32_t>(program_.aged_epoch % 0xFFFFFFFFu) + 1};
      for (uint64_t at = first; at < end; at += sizeof old) std::memcpy(memory + at, &old, sizeof old);
    }
    for (uint32_t block = 0; block < buffer_shape_.num_blocks; ++block) {
      const auto part = static_cast<uint16_t>(program_.first_epoch % buffer_shape_.num_parts());
      const BufferRecord record{program_.first_epoch, 0, part, 0};
      std::memcpy(memory + buffer_shape_.records_offset() + block * sizeof record, &record, sizeof record);
    }
  }
}

void World::plan_buffer(int k) {
  const int ranks = program_.ranks;
  const Call& call = program_.calls[k];
  const KernelRow& row = *launches_[k * ranks].row;
  const auto words = static_cast<uint32_t>(call.numel);
  check(words * 4 % static_cast<uint32_t>(row.unit_bytes) == 0, "whole elements");
  const uint32_t* values = inputs_[launches_[k * ranks].data_call].data();
  std::vector<const uint32_t*> sources;
  for (int rank = 0; rank < ranks; ++rank) sources.push_back(values + size_t(rank) * user_words_);
  for (int rank = 0; rank < ranks; ++rank) {
    Plan& plan = launches_[k * ranks + rank].plan;
    plan =
        make_plan(words * 4 / static_cast<uint32_t>(row.unit_bytes), 1, static_cast<uint32_t>(call.channels), 1u << 20);
    uint32_t* to = &expected_[k][size_t(rank) * user_words_];
    uint32_t written = words;
    switch (row.buffer) {
      case BufferUse::kAllReduce:
        reduce_words(call.dtype, call.op, sources, to, (words + 1) / 2 * 2);
        break;
      case BufferUse::kRing:
        std::copy_n(sources[static_cast<size_t>((rank + ranks - 1) % ranks)], words, to);
        break;
      default:
        written = words * static_cast<uint32_t>(ranks);
        for (int source = 0; source < ranks; ++source) {
          const uint32_t from = row.buffer == BufferUse::kAllToAll ? static_cast<uint32_t>(rank) * words : 0;
          std::copy_n(sources[static_cast<size_t>(source)] + from, words, to + static_cast<uint32_t>(source) * words);
        }
    }
    output_bytes_[k * ranks + rank] = 4 * written;
  }
}

}  // namespace llcoll::sim
