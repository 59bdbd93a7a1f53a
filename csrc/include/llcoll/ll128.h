// LL128: peers add into the owner's 128-byte lines, and the sum of a line says by itself when it is whole.
//
// The first element of every line is 1 in each contribution, so after N of them it reads N, whatever the order. The
// element that stood there travels in extra lines of the same tile, whose first element counts alike. What makes this
// right is that a line's 8 parts are added as one and read as one: so does the L2 of one GPU for one converged warp
// instruction, and NVLink keeps 128-byte requests together. No other link is known to: see Topology::line_atomics.
#pragma once

#include "llcoll/line.h"
#include "llcoll/sentinel.h"

namespace llcoll {
inline namespace LLC_ISA {

inline constexpr int kMaxTileLines = 64;

// How elements lie in a line. `wide`: 16-bit elements as float32, so that each sum is rounded once, at twice the bytes.
template <class Type, bool wide>
struct LineFormat {
  using Element = Type;
  static constexpr bool kHalves = !wide && Type::kPerWord == 2;
  static constexpr LineAdd kAdd = !kHalves                           ? LineAdd::kFloat32
                                  : Type::kDType == DType::kBFloat16 ? LineAdd::kBFloat16
                                                                     : LineAdd::kFloat16;
  static constexpr int kPerPart = kHalves ? 8 : 4;
  static constexpr int kPerLine = kPerPart * kLineParts;
  // What a part is in a message, and the gather slot of its result.
  using Unit = Bytes<wide && Type::kPerWord == 2 ? 8 : 16>;

  static LLC_FN LinePart part_of(Unit unit) {
    if constexpr (sizeof(Unit) == sizeof(LinePart)) {
      return bits_as<LinePart>(unit);
    } else {
      LinePart part;
      LLC_UNROLL
      for (int k = 0; k < 4; ++k) {
        part.words[k] = bits_as<uint32_t>(Type::template unpack<uint32_t>(unit.words[k / 2], k % 2));
      }
      return part;
    }
  }
  // Rounds (wide) and makes every NaN the canonical one: which one the adders left depends on their order.
  static LLC_FN Unit unit_of(LinePart part) {
    Unit unit;
    if constexpr (sizeof(Unit) != sizeof(LinePart)) {
      LLC_UNROLL
      for (int w = 0; w < 2; ++w) {
        unit.words[w] = Type::template pack<uint32_t>(bits_as<float>(part.words[2 * w]), 0) |
                        Type::template pack<uint32_t>(bits_as<float>(part.words[2 * w + 1]), 1);
      }
    } else {
      LLC_UNROLL
      for (int w = 0; w < 4; ++w) {
        unit.words[w] = Type::template pack<uint32_t>(Type::template unpack<uint32_t>(part.words[w], 0), 0);
        if constexpr (kHalves) {
          unit.words[w] |= Type::template pack<uint32_t>(Type::template unpack<uint32_t>(part.words[w], 1), 1);
        }
      }
    }
    return unit;
  }

  // Element k of a part, as bits.
  static LLC_FN uint32_t get(const LinePart& part, int k) {
    return kHalves ? (part.words[k / 2] >> (16 * (k % 2))) & 0xFFFFu : part.words[k];
  }
  static LLC_FN void set(LinePart& part, int k, uint32_t bits) {
    if constexpr (kHalves) {
      const uint32_t other = 0xFFFF0000u >> (16 * (k % 2));
      part.words[k / 2] = (part.words[k / 2] & other) | bits << (16 * (k % 2));
    } else {
      part.words[k] = bits;
    }
  }
  // What a line's first element reads after n arrivals. Exact: 16-bit types count to 256 and 2048.
  static LLC_FN uint32_t count_bits(int n) {
    static_assert(kMaxRanks <= 256);
    return kHalves ? Type::template pack<uint32_t>(static_cast<float>(n), 0) : bits_as<uint32_t>(static_cast<float>(n));
  }
};

// A tile: `lines` lines that one group adds and reads together, the last of which carry the displaced elements.
struct Tile {
  uint32_t lines;
  uint32_t extra;

  LLC_SHARED_FN Tile(uint32_t num_lines, uint32_t elements_per_line)
      : lines(num_lines), extra((num_lines + elements_per_line - 1) / elements_per_line) {}
  LLC_SHARED_FN uint32_t regular() const { return lines - extra; }
  LLC_SHARED_FN uint32_t units() const { return regular() * kLineParts; }
  LLC_SHARED_FN uint32_t count_for(uint32_t num_units) const {
    return num_units <= units() ? 1 : (num_units + units() - 1) / units();
  }
};

// One part of a scratch: lines first, then gathered results, [source][unit], in slots of 16 bytes. The boundary never
// moves, since the two are empty in different ways.
LLC_SHARED_FN uint32_t line_slots_of(const ScratchShape& shape) {
  // A tile of 16 lines has 5 slots of lines for 4 units and more; every unit is gathered from every rank.
  const uint32_t wanted = static_cast<uint32_t>(uint64_t{5} * shape.slots_per_channel / (4 * shape.num_ranks + 5));
  return wanted / kLineParts * kLineParts;
}
LLC_SHARED_FN uint32_t gather_slots(uint32_t stride, uint32_t unit_bytes, int num_ranks) {
  return stride_of((num_ranks * stride * unit_bytes + 15) / 16);
}
// Whether an epoch of `count` units has room.
LLC_SHARED_FN bool fits_lines(const ScratchShape& shape, uint32_t count, const Tile& tile, uint32_t unit_bytes) {
  const uint32_t line_slots = line_slots_of(shape);
  return uint64_t{tile.count_for(count)} * tile.lines * kLineParts <= line_slots &&
         gather_slots(stride_of(count), unit_bytes, shape.num_ranks) <= shape.slots_per_channel - line_slots;
}
// Record::extent holds both in 16 bits each.
inline constexpr uint32_t kMaxLineSlots = 0xFFFFu * kStrideUnits;

// A group that works on lines: how many a tile has, line_slots_of() the scratch, and kDisplaced words that the members
// share.
template <class Base, int batch>
struct LineGroup : Base {
  static constexpr int kBatch = batch;  // parts of the message that one barrier serves
  static constexpr uint32_t kDisplaced = 2 * batch * kMaxTileLines;
  uint32_t lines;
  uint32_t line_slots;
  uint32_t* displaced;

  LLC_FN LineGroup(const Base& base, uint32_t num_lines, uint32_t num_line_slots, uint32_t* memory)
      : Base(base), lines(num_lines), line_slots(num_line_slots), displaced(memory) {}
};

template <class Memory>
struct Ll128 {
  using Unit = LinePart;
  static constexpr int kSlotBytes = sizeof(LinePart);
  static constexpr int kBuffers = 3;  // added into, read from, cleared
  static constexpr int kAhead = 0;
  static constexpr bool kPush = true;
  static constexpr bool kNeedsFence = true;

  template <class Format, class Group>
  struct Stage {
    using Unit = typename Format::Unit;
    const Memory& mem;
    const Group& group;
    const Scratch& scratch;
    uint64_t epoch;
    uint64_t base;
    uint32_t stride;

    LLC_FN Tile tile() const { return {group.lines, Format::kPerLine}; }
    LLC_FN LinePart* line(int rank, uint32_t tile_idx, uint32_t line_idx) const {
      return reinterpret_cast<LinePart*>(scratch.memory[rank] + base) +
             (tile_idx * group.lines + line_idx) * kLineParts;
    }
    LLC_FN Unit* slot(int rank, int source, uint32_t i) const {
      return reinterpret_cast<Unit*>(scratch.memory[rank] + base + uint64_t{group.line_slots} * kSlotBytes) +
             source * stride + i;
    }

    // The owner's results, by sentinel; see sentinel.h.
    LLC_FN void bcast(uint32_t i, Unit w, int num_ranks) const {
      const Unit published = without_sentinel<typename Format::Element>(w);
      LLC_UNROLL
      for (int peer = 0; peer < num_ranks; ++peer) {
        if (peer != scratch.rank) mem.store_unit(slot(peer, scratch.rank, i), published);
      }
    }
    LLC_FN bool try_recv(int source, uint32_t i, Unit& w) const {
      w = mem.load_unit(slot(scratch.rank, source, i));
      return !has_sentinel<typename Format::Element>(w);
    }

    LLC_FN uint32_t extent() const {
      const Tile t = tile();
      return gather_slots(stride, sizeof(Unit), scratch.shape.num_ranks) / kStrideUnits | t.count_for(stride) * t.lines
                                                                                              << 16;
    }
    // Clears what epoch e - 1 filled, lines to zero and slots to the sentinel. Peers add there again in e + 2; why they
    // come behind this: sentinel.h.
    LLC_FN void retire(uint32_t previous_extent, uint32_t previous_buffer) const {
      LinePart empty, zero{};
      LLC_UNROLL
      for (uint32_t& word : empty.words) word = kSentinelWord;
      auto* first = reinterpret_cast<LinePart*>(scratch.memory[scratch.rank] +
                                                scratch.shape.slot_offset(previous_buffer, group.channel));
      const uint32_t slots = (previous_extent & 0xFFFFu) * kStrideUnits;
      const uint32_t parts = (previous_extent >> 16) * kLineParts;
      for (uint32_t i = group.rank; i < parts; i += group.size) mem.store_unit(first + i, zero);
      first += group.line_slots;
      for (uint32_t i = group.rank; i < slots; i += group.size) mem.store_unit(first + i, empty);
    }
  };
};

}  // namespace LLC_ISA
}  // namespace llcoll
