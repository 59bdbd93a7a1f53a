// The memory under an LLBuffer: who owns which bytes, how many are needed, how they begin. Host and device.
//
// Each rank has one buffer of BufferShape::bytes() in memory that all ranks can store to:
//
//   control   DeviceControl, FailureRecord       aborts and the report of a failed wait
//   slots     [part][block][bytes_per_block]     part = epoch % round_robin; slots are indexed by element
//   barrier   [block][source]                    words of LLBuffer::barrier
//   records   [block]                            private to the owner
#pragma once

#include <cstring>

#include "llcoll/device_wait.h"
#include "llcoll/layout.h"

namespace llcoll {
inline namespace LLC_ISA {

// How a receiver knows that data arrived. An element of 1 to 16 bytes travels in whole packets, padded with zeros:
//   kLl         8 bytes of payload and an 8-byte flag in one 16-byte access (one GPU, NVLink, CPU)
//   kLlNarrow   4 bytes and a 4-byte flag in one 8-byte access: links on which only 8 bytes are sure to stay together
//   kSentinel   4-byte words, 1, 2 or 4 of them in one access, which hold all ones until data land; only for types with
//               a spare NaN (ElementOf in ll_slot.h) or of less than 4 bytes
enum class LlMode : int32_t { kLl, kLlNarrow, kSentinel };

LLC_SHARED_FN uint32_t packet_payload(LlMode mode) { return mode == LlMode::kLl ? 8 : 4; }
LLC_SHARED_FN uint32_t packet_bytes(LlMode mode) { return mode == LlMode::kSentinel ? 4 : 2 * packet_payload(mode); }

// Bytes of one element's slot.
LLC_SHARED_FN uint32_t slot_bytes(LlMode mode, uint32_t element_bytes) {
  const uint32_t payload = packet_payload(mode);
  const uint32_t whole = element_bytes <= 4 ? 4 : element_bytes <= 8 ? 8 : 16;  // one access each in sentinel mode
  return (whole + payload - 1) / payload * packet_bytes(mode);
}

// What one block remembers between launches; 16 bytes, one access.
struct alignas(16) BufferRecord {
  uint64_t epoch;     // finished ones
  uint32_t barriers;  // passed
  uint16_t part;      // in use
  uint16_t failed;
};
static_assert(sizeof(BufferRecord) == 16);

struct BufferShape {
  uint32_t bytes_per_block;  // slots of one block (CTA) in one epoch
  uint32_t num_blocks;
  uint32_t round_robin;  // parts that the epochs take in turn; 0: one part, whose use in time is the caller's affair
  int num_ranks;

  static constexpr uint64_t kControlBytes = 512;
  static_assert(sizeof(DeviceControl) + sizeof(FailureRecord) <= kControlBytes);

  LLC_SHARED_FN uint32_t num_parts() const { return round_robin == 0 ? 1 : round_robin; }
  LLC_SHARED_FN uint64_t slots_offset(uint32_t part, uint32_t block) const {
    return kControlBytes + (uint64_t{part} * num_blocks + block) * bytes_per_block;
  }
  LLC_SHARED_FN uint64_t barrier_offset(uint32_t block, int source) const {
    return slots_offset(num_parts(), 0) + (uint64_t{block} * num_ranks + source) * sizeof(Packet);
  }
  LLC_SHARED_FN uint64_t records_offset() const { return barrier_offset(num_blocks, 0); }
  LLC_SHARED_FN uint64_t bytes() const { return records_offset() + uint64_t{num_blocks} * sizeof(BufferRecord); }
};

// `num_elements`: what one block gets from EACH rank in one epoch.
LLC_SHARED_FN BufferShape make_buffer_shape(LlMode mode, uint32_t num_elements, uint32_t element_bytes, int num_ranks,
                                            uint32_t num_blocks, uint32_t round_robin) {
  const uint32_t bytes = num_elements * slot_bytes(mode, element_bytes) * num_ranks;
  return {(bytes + 127) / 128 * 128, num_blocks, round_robin, num_ranks};
}

// Bytes that each rank allocates.
LLC_SHARED_FN uint64_t ll_scratch_bytes(LlMode mode, uint32_t num_elements, uint32_t element_bytes, int num_ranks,
                                        uint32_t num_blocks, uint32_t round_robin) {
  return make_buffer_shape(mode, num_elements, element_bytes, num_ranks, num_blocks, round_robin).bytes();
}

// The pointers as a kernel sees them; passed by value. 16-byte aligned at least, 128 is better.
struct SymmetricBuffer {
  BufferShape shape;
  int rank;
  char* memory[kMaxRanks];  // [r]: rank r's buffer, mapped here
  char* multicast;          // an address that stores to all ranks' buffers; nullptr: none
};

// What a kernel takes: the buffer, and how long its waits last (0: for ever).
struct LlArgs {
  SymmetricBuffer buffer;
  DeviceWait wait;
};
inline LlArgs make_ll_args(const BufferShape& shape, int rank, char* const* memory, uint64_t timeout_ns,
                           char* multicast = nullptr) {
  LlArgs args{};
  args.buffer.shape = shape;
  args.buffer.rank = rank;
  args.buffer.multicast = multicast;
  args.wait.rank = rank;
  args.wait.num_ranks = shape.num_ranks;
  args.wait.timeout_ns = timeout_ns;
  args.wait.record = reinterpret_cast<FailureRecord*>(memory[rank] + sizeof(DeviceControl));
  for (int r = 0; r < shape.num_ranks; ++r) {
    args.buffer.memory[r] = memory[r];
    args.wait.controls[r] = reinterpret_cast<DeviceControl*>(memory[r]);
  }
  args.wait.own_abort = &args.wait.controls[rank]->aborted;
  return args;
}

// How a rank's own buffer begins: fill(offset, byte, count) for each range. Then the caller synchronises the device,
// and only behind a barrier of all ranks may anybody send: an early packet would be cleared.
template <class Fill>
void init_ll_buffer(const BufferShape& shape, LlMode mode, Fill&& fill) {
  const uint64_t first = shape.slots_offset(0, 0), end = shape.slots_offset(shape.num_parts(), 0);
  fill(uint64_t{0}, 0, first);
  fill(first, mode == LlMode::kSentinel ? 0xFF : 0, end - first);
  fill(end, 0, shape.bytes() - end);
}
// The same for memory that this thread can write.
inline void init_ll_buffer(const BufferShape& shape, LlMode mode, char* memory) {
  init_ll_buffer(shape, mode,
                 [&](uint64_t offset, int byte, uint64_t count) { std::memset(memory + offset, byte, count); });
}

}  // namespace LLC_ISA
}  // namespace llcoll
