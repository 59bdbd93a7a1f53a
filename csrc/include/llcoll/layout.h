// Where things lie in a scratch: the only place that turns (epoch, channel, slot) into an offset, for host and device.
//
// A scratch belongs to ONE protocol (LL, sentinel and flag never share memory: their empty patterns differ). Each rank
// has one of the same size, mapped by all others:
//
//   slots   [buffer][channel][slot]           slot = region * stride + unit, regions packed from 0
//   ready   [channel][phase][parity][source]  flag protocol only
//   records [channel]                         private to the owner
//
// The part of one channel in one buffer has a fixed size, independent of grid and message: a channel that runs sees
// its own epochs only, so ranks need not agree on what other channels did.
#pragma once

#include "llcoll/word.h"

namespace llcoll {
inline namespace LLC_ISA {

// What one channel remembers between launches, read and written in one 16-byte access by its own rank alone. One
// shared record for all channels fails: a fast channel advances it and a slow one skips an epoch.
struct alignas(16) Record {
  uint64_t epoch;   // last epoch this channel ran; 64-bit, so it does not wrap
  uint32_t extent;  // slots that epoch filled, from slot 0: what the next sentinel epoch must clear
  uint32_t packed;  // buffer, and id of the launch that wrote this

  // The buffer is epoch % buffers, kept so that no division stands on the path of a message.
  static constexpr uint32_t kLaunchBits = 24;
  static constexpr uint32_t kLaunchMask = (1u << kLaunchBits) - 1;
  static constexpr uint32_t kFailed = 255;  // in place of a buffer, for good: every later call leaves at once
  LLC_SHARED_FN static Record make(uint64_t epoch, uint32_t extent, uint32_t buffer, uint32_t launch = 0) {
    return {epoch, extent, launch | buffer << kLaunchBits};
  }
  LLC_SHARED_FN uint32_t buffer() const { return packed >> kLaunchBits; }
  LLC_SHARED_FN uint32_t launch() const { return packed & kLaunchMask; }
};
static_assert(sizeof(Record) == 16);

inline constexpr int kNumPhases = 3;  // of ready words: two exchanges, and the exit of a pull

// Regions start on 128-byte lines of 16-byte slots.
inline constexpr uint32_t kStrideUnits = 8;
LLC_SHARED_FN uint32_t stride_of(uint32_t count) { return (count + kStrideUnits - 1) / kStrideUnits * kStrideUnits; }

// Push protocols (LL, sentinel): the sender writes region `phase * ranks + sender` of the receiver's memory.
LLC_SHARED_FN uint32_t push_region(int phase, int source, int num_ranks) { return phase * num_ranks + source; }
// Pull protocol (flag): the sender writes its OWN memory: one region per receiver, or one for all.
LLC_SHARED_FN uint32_t pull_region(int receiver) { return receiver; }
LLC_SHARED_FN uint32_t pull_region_for_all(int phase, int num_ranks) { return phase * num_ranks; }

LLC_SHARED_FN uint32_t push_regions(int num_phases, int num_ranks) { return num_phases * num_ranks; }
LLC_SHARED_FN uint32_t pull_regions(int num_phases, int num_ranks) { return num_phases == 1 ? 1 : num_ranks + 1; }

// Offsets into one buffer fit 32 bits, so that a kernel finds its slots with few instructions (make_shape asserts it).
struct ScratchShape {
  uint32_t slots_per_channel;
  uint32_t num_channels;
  uint32_t num_buffers;
  uint32_t slot_bytes;
  uint32_t ready_bytes;  // distance of two ready words; 0 where the protocol has none
  int num_ranks;
  uint32_t channel_bytes;
  uint32_t buffer_bytes;

  LLC_SHARED_FN uint64_t slot_offset(uint32_t buffer, uint32_t channel) const {
    return uint64_t{buffer} * buffer_bytes + channel * channel_bytes;
  }
  LLC_SHARED_FN uint64_t slots_bytes() const { return slot_offset(num_buffers, 0); }
  LLC_SHARED_FN uint64_t ready_offset(uint32_t channel, int phase, uint32_t parity, int source) const {
    return slots_bytes() + uint64_t{((channel * kNumPhases + phase) * 2 + parity) * num_ranks + source} * ready_bytes;
  }
  LLC_SHARED_FN uint64_t records_offset() const { return ready_offset(num_channels, 0, 0, 0); }
  LLC_SHARED_FN uint64_t bytes() const { return records_offset() + uint64_t{num_channels} * sizeof(Record); }
};

// The most slots that a channel can have.
LLC_SHARED_FN uint64_t max_slots(uint32_t num_channels, uint32_t slot_bytes) {
  return 0xFFFFFFFFull / num_channels / slot_bytes / kStrideUnits * kStrideUnits;
}
// slots_per_channel <= max_slots().
LLC_SHARED_FN ScratchShape make_shape(uint32_t slots_per_channel, uint32_t num_channels, uint32_t num_buffers,
                                      uint32_t slot_bytes, uint32_t ready_bytes, int num_ranks) {
  const uint32_t channel_bytes = slots_per_channel * slot_bytes;
  return {slots_per_channel, num_channels, num_buffers,   slot_bytes,
          ready_bytes,       num_ranks,    channel_bytes, num_channels * channel_bytes};
}

// One protocol's scratch as a kernel sees it; passed by value (CUDA: __grid_constant__).
struct Scratch {
  ScratchShape shape;
  int rank;
  Record* records;          // this rank's own
  char* memory[kMaxRanks];  // [r]: rank r's scratch, mapped here
  char* multicast;          // all ranks' scratches at once, null without multicast

  LLC_FN Record* record(uint32_t channel) const { return records + channel; }
};
// Call once shape, rank and memory are set.
inline void find_records(Scratch& scratch) {
  scratch.records = reinterpret_cast<Record*>(scratch.memory[scratch.rank] + scratch.shape.records_offset());
}

// The group's symmetric pool, behind the scratch in the same buffer, and where in it a rank's own tensors lie. A place
// is 1 + the offset in units of kPlaceBytes, 0 for a tensor elsewhere: what a ready word carries.
inline constexpr uint32_t kPlaceBytes = 16;
struct Symmetric {
  uint64_t pool_offset;  // from a rank's scratch to its pool, the same on every rank
  uint32_t input;
  uint32_t output;
};

// How a message is cut. Made by the launcher, the same on every rank, since it depends on sizes and grid alone.
// One-shot: `part` is the whole message. Two-shot: part p, owned by rank p, starts at p * part; the last may reach past
// the end and is padded with zeros, so that every part sends equal counts.
struct Plan {
  uint32_t part;         // units
  uint32_t per_channel;  // units of a part that one channel handles
  uint32_t chunk;        // units that one channel handles per epoch
  uint32_t num_chunks;   // epochs per channel in this launch
};

LLC_SHARED_FN Plan make_plan(uint64_t num_units, int num_parts, uint32_t num_channels, uint32_t max_chunk) {
  Plan plan{};
  plan.part = static_cast<uint32_t>((num_units + num_parts - 1) / num_parts);
  plan.per_channel = (plan.part + num_channels - 1) / num_channels;
  plan.num_chunks = plan.per_channel == 0 ? 1 : (plan.per_channel + max_chunk - 1) / max_chunk;
  plan.chunk = (plan.per_channel + plan.num_chunks - 1) / plan.num_chunks;
  // Rounding up can leave whole chunks over; an epoch without data tells the peers nothing.
  if (plan.chunk != 0) plan.num_chunks = (plan.per_channel + plan.chunk - 1) / plan.chunk;
  return plan;
}

}  // namespace LLC_ISA
}  // namespace llcoll
