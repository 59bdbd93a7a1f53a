// A tensor as parts, one per rank, in rank order and without gaps; each part is seen as units of its own. What lies
// past a part's end reads as zeros and is not written.
#pragma once

#include "llcoll/layout.h"

namespace llcoll {
inline namespace LLC_ISA {

// What one channel handles of a part in one epoch: units [begin, begin + count) of the part.
struct Span {
  uint32_t begin;
  uint32_t count;
};

// A part's cut over channels and epochs depends on its own size, the grid and the chunk alone, so the two ranks that
// exchange it agree without knowing other parts.
struct Parts {
  char* data;
  uint32_t element_bytes;
  uint64_t begin[kMaxRanks + 1];    // bytes; part p is [begin[p], begin[p + 1])
  uint32_t per_channel[kMaxRanks];  // units of part p that one channel handles

  LLC_SHARED_FN uint64_t bytes_of(int p) const { return begin[p + 1] - begin[p]; }
  LLC_FN char* start_of(int p) const { return data + begin[p]; }

  template <class Unit>
  LLC_FN Span span(int p, uint32_t channel, uint32_t chunk_idx, uint32_t chunk) const {
    const uint32_t units = static_cast<uint32_t>((bytes_of(p) + Unit::kBytes - 1) / Unit::kBytes);
    const uint32_t limit = (channel + 1) * per_channel[p];
    const uint32_t end = limit < units ? limit : units;
    const uint32_t first = channel * per_channel[p] + chunk_idx * chunk;
    return {first, first >= end ? 0u : (end - first < chunk ? end - first : chunk)};
  }

  // The bytes of a span that the part has; where they are.
  template <class Unit>
  LLC_FN uint64_t bytes_in(int p, Span span) const {
    const uint64_t offset = uint64_t{span.begin} * Unit::kBytes;
    const uint64_t wanted = uint64_t{span.count} * Unit::kBytes;
    return offset + wanted <= bytes_of(p) ? wanted : bytes_of(p) - offset;
  }
  template <class Unit>
  LLC_FN char* at(int p, Span span) const {
    return start_of(p) + uint64_t{span.begin} * Unit::kBytes;
  }

  // Alignment is this rank's own business: it changes how the rank reads, never what travels.
  template <class Unit, class Memory>
  LLC_FN Unit read(const Memory& mem, int p, uint32_t i) const {
    const char* start = start_of(p);
    const uint64_t offset = uint64_t{i} * Unit::kBytes;
    if (offset + Unit::kBytes <= bytes_of(p) && mem.template can_access<Unit>(start)) {
      return mem.template read<Unit>(start + offset);
    }
    return mem.template read_part<Unit>(start, offset, bytes_of(p), element_bytes);
  }
  template <class Unit, class Memory>
  LLC_FN void write(const Memory& mem, int p, uint32_t i, Unit value) const {
    char* start = start_of(p);
    const uint64_t offset = uint64_t{i} * Unit::kBytes;
    if (offset + Unit::kBytes <= bytes_of(p) && mem.template can_access<Unit>(start)) {
      mem.template write<Unit>(start + offset, value);
    } else {
      mem.template write_part<Unit>(start, offset, bytes_of(p), element_bytes, value);
    }
  }
};

// How a call of one exchange is cut. The same on every rank, except for `num_chunks` where the call is open-ended.
struct Cut {
  uint64_t poison;      // 8 bytes of what a failed call leaves in the output
  uint32_t chunk;       // units of a part that one channel handles per epoch
  uint32_t num_chunks;  // epochs per channel in this launch
  uint32_t stride;      // slots from one region to the next
  bool hello;           // some channel may run an epoch without hearing from each peer: hello words make up for it
  bool open_ended;      // num_chunks is what this rank needs; ranks run as many as the neediest of them
};

}  // namespace LLC_ISA
}  // namespace llcoll
