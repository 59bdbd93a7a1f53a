// Two-shot all-reduce by atomic LL128 lines. Sums only: the order of arrivals is the order of additions, so results
// differ in the last bits from run to run (not from rank to rank: the owner's sum is what everyone gets).
#pragma once

#include "llcoll/ll128.h"
#include "llcoll/one_shot.h"

namespace llcoll {
inline namespace LLC_ISA {

// One lane's part of a line whose lanes are not together, which a barrier of the warp does not mend (it lets them part
// again): the count and a part would be added one after the other, in either order. So the parts go first, and the
// count, which the first lane brings, behind a fence. All lanes of the line call.
template <LineAdd kAdd, class Group, class Memory>
LLC_COLD_FN void add_apart(Memory mem, LinePart* line, uint32_t lane, LinePart part) {
  const LinePart parts[1] = {part};
  if (lane != 0) {
    mem.template add_parts<kAdd>(line, lane, parts);
    mem.fence();
  }
  Group::sync_line();
  if (lane == 0) {
    mem.fence();  // what the barrier has brought together, ahead of the count for everyone
    mem.template add_parts<kAdd>(line, lane, parts);
  }
}

// One group's work on one epoch. Members own whole lines: eight lanes each (CUDA) or one member (Group::kLineLanes).
// The members' first elements pass through `displaced`, two halves in turn, so one barrier per step is enough: a half
// is written again only behind the barrier of the step between, which its readers reached after they read.
template <class Format, int ranks, class Stage, class Memory, class Group, class Input>
class LineWork {
  using Unit = typename Format::Unit;
  static constexpr int kLanes = Group::kLineLanes;
  static constexpr int kParts = kLineParts / kLanes;
  static constexpr int kLines = kLanes == 1 ? kMaxTileLines : 1;  // per member
  static constexpr int kBatch = Group::kBatch;

 public:
  LLC_FN LineWork(Memory& mem, const Group& group, const Input& message, const Plan& plan, int num_ranks)
      : mem_(mem), group_(group), message_(message), plan_(plan), num_ranks_(num_ranks) {}

  // Adds this rank's units [begin, begin + count) of every part to the part's owner, its own part too.
  LLC_FN void send(const Stage& stage, uint32_t begin, uint32_t count) {
    const uint32_t num_tiles = count == 0 ? 0 : stage.tile().count_for(count);
    for (uint32_t t = 0; t < num_tiles; ++t) {
      for (int first = 0; first < num_ranks_; first += kBatch) send_tile(stage, t, begin, count, first);
    }
  }

  // Reads the sums of this rank's own part and passes them on.
  LLC_FN bool receive_own(const Stage& stage, uint32_t begin, uint32_t count) {
    const uint32_t num_tiles = count == 0 ? 0 : stage.tile().count_for(count);
    bool arrived = true;
    for (uint32_t t = 0; t < num_tiles && arrived; ++t) arrived = receive_tile(stage, t, begin, count);
    return arrived;
  }

 private:
  LLC_FN uint32_t lane() const { return group_.rank % kLanes; }
  LLC_FN uint32_t line_of(int k) const { return group_.rank / kLanes + k * (group_.size / kLanes); }
  // Regular lines of tile t that hold units below `count`, and whether extra line x carries any of theirs.
  static LLC_FN uint32_t num_active(const Tile& tile, uint32_t t, uint32_t count) {
    const uint32_t left = (count - t * tile.units() + kLineParts - 1) / kLineParts;
    return left < tile.regular() ? left : tile.regular();
  }
  static LLC_FN bool is_active(const Tile& tile, uint32_t line, uint32_t active) {
    return line < tile.regular() ? line < active : (line - tile.regular()) * (Format::kPerLine - 1) < active;
  }
  LLC_FN uint32_t* next_displaced() { return group_.displaced + (step_++ & 1) * (kBatch * kMaxTileLines); }

  LLC_FN void send_tile(const Stage& stage, uint32_t t, uint32_t begin, uint32_t count, int first) {
    const Tile tile = stage.tile();
    const uint32_t active = num_active(tile, t, count);
    const uint32_t one = Format::count_bits(1);
    uint32_t* const displaced = next_displaced();
    LLC_UNROLL
    for (int k = 0; k < kLines; ++k) {
      const uint32_t line = line_of(k);
      const bool mine = line < active;
      if (kLines > 1 && !mine) break;
      // All reads, then all additions: an addition waits for its read, and the next read would wait behind it.
      Unit units[kBatch][kParts];
      const uint32_t unit = t * tile.units() + line * kLineParts + lane();
      LLC_UNROLL
      for (int b = 0; b < kBatch; ++b) {
        for (int p = 0; p < kParts && first + b < num_ranks_; ++p) {
          // Past `count` lies the next channel's part: those elements are not ours to add.
          units[b][p] = mine && unit + p < count
                            ? message_.template read<Unit>(mem_, (first + b) * plan_.part + begin + unit + p)
                            : Unit{};
        }
      }
      if (mine && lane() == 0) {
        LLC_UNROLL
        for (int b = 0; b < kBatch; ++b) {
          if (first + b < num_ranks_) {
            displaced[b * kMaxTileLines + line] = Format::get(Format::part_of(units[b][0]), 0);
          }
        }
      }
      // The extra lines wait for this anyway. Lanes that read a partial unit left the others, and come back here.
      if constexpr (kLines == 1) group_.sync();
      LLC_UNROLL
      for (int b = 0; b < kBatch; ++b) {
        if (!mine || first + b >= num_ranks_) break;
        LinePart parts[kParts];
        LLC_UNROLL
        for (int p = 0; p < kParts; ++p) parts[p] = Format::part_of(units[b][p]);
        if (lane() == 0) Format::set(parts[0], 0, one);
        add(stage.line(first + b, t, line), parts);
      }
    }
    if constexpr (kLines > 1) group_.sync();
    LLC_UNROLL
    for (int k = 0; k < kLines; ++k) {
      const uint32_t line = line_of(k);
      if (line >= tile.lines) break;
      if (line < tile.regular() || !is_active(tile, line, active)) continue;
      const uint32_t carried = (line - tile.regular()) * (Format::kPerLine - 1);
      for (int b = 0; b < kBatch && first + b < num_ranks_; ++b) {
        LinePart parts[kParts]{};
        for (int p = 0; p < kParts; ++p) {
          LLC_UNROLL
          for (int e = 0; e < Format::kPerPart; ++e) {
            const uint32_t at = (lane() + p) * Format::kPerPart + e;
            const uint32_t from = carried + at - 1;
            Format::set(parts[p], e, at == 0 ? one : (from < active ? displaced[b * kMaxTileLines + from] : 0));
          }
        }
        add(stage.line(first + b, t, line), parts);
      }
    }
  }

  // Adds a line as one (relaxed.sys); pairs with the load in receive_tile.
  LLC_FN void add(LinePart* line, const LinePart (&parts)[kParts]) const {
    if (LLC_LIKELY(group_.line_is_together())) {
      mem_.template add_parts<Format::kAdd>(line, lane(), parts);
    } else if constexpr (kLanes > 1) {
      add_apart<Format::kAdd, Group>(mem_, line, lane(), parts[0]);
    }
  }

  LLC_FN bool receive_tile(const Stage& stage, uint32_t t, uint32_t begin, uint32_t count) {
    const Tile tile = stage.tile();
    const uint32_t active = num_active(tile, t, count);
    const uint32_t all = Format::count_bits(num_ranks_);
    const int rank = stage.scratch.rank;
    LinePart parts[kLines][kParts]{};
    // Every lane reads its part at each poll and looks at the first lane's: the line is read as one.
    const bool here = wait_together(
        mem_, group_, stage.epoch,
        [&] {
          bool whole = true;
          LLC_UNROLL
          for (int k = 0; k < kLines; ++k) {
            const uint32_t line = line_of(k);
            const bool wanted = line < tile.lines && is_active(tile, line, active);
            const bool together = group_.line_is_together();
            if (wanted) mem_.load_parts(stage.line(rank, t, line), lane(), parts[k]);
            const uint32_t found = group_.first_of_line(Format::get(parts[k][0], 0));
            // Read one after the other, a part may be older than the count: once more, behind it.
            if (LLC_UNLIKELY(!together && wanted && found == all)) {
              mem_.fence();
              Group::sync_line();
              mem_.load_parts(stage.line(rank, t, line), lane(), parts[k]);
            }
            whole &= !wanted || found == all;
          }
          return whole;
        },
        [&] { return mem_.find_idle_peer(); });
    uint32_t* const displaced = next_displaced();
    LLC_UNROLL
    for (int k = 0; k < kLines; ++k) {
      const uint32_t line = line_of(k);
      if (line >= tile.lines) break;
      if (line < tile.regular() || !is_active(tile, line, active)) continue;
      const uint32_t carried = (line - tile.regular()) * (Format::kPerLine - 1);
      for (int p = 0; p < kParts; ++p) {
        LLC_UNROLL
        for (int e = 0; e < Format::kPerPart; ++e) {
          const uint32_t at = (lane() + p) * Format::kPerPart + e;
          if (at != 0 && carried + at - 1 < active) displaced[carried + at - 1] = Format::get(parts[k][p], e);
        }
      }
    }
    // Whoever failed may be the one that carries another's element: nobody passes anything on.
    if (group_.any(!here)) return false;
    LLC_UNROLL
    for (int k = 0; k < kLines; ++k) {
      const uint32_t line = line_of(k);
      if (line >= active) break;
      if (lane() == 0) Format::set(parts[k][0], 0, displaced[line]);
      const uint32_t unit = t * tile.units() + line * kLineParts + lane();
      LLC_UNROLL
      for (int p = 0; p < kParts; ++p) {
        if (unit + p >= count) break;
        const Unit sum = Format::unit_of(parts[k][p]);
        stage.bcast(unit + p, sum, num_ranks_);
        message_.write(mem_, rank * plan_.part + begin + unit + p, sum);
      }
    }
    return true;
  }

  Memory& mem_;
  const Group& group_;
  const Input& message_;
  const Plan& plan_;
  const int num_ranks_;
  uint32_t step_ = 0;
};

// The other owners' results of units [begin, begin + count): a batch of owners is polled together.
template <int ranks, class Stage, class Memory, class Group, class Input>
LLC_FN bool receive_gathered(Memory& mem, const Group& group, const Stage& stage, const Input& message,
                             const Plan& plan, int num_ranks, uint32_t begin, uint32_t count) {
  using Unit = typename Stage::Unit;
  constexpr int kBatch = ranks == 0 || ranks > 4 ? 4 : ranks;
  const int rank = stage.scratch.rank;
  bool arrived = true;
  group.each(count, [&](uint32_t i) {
    for (int first = 0; first < num_ranks && arrived; first += kBatch) {
      Unit units[kBatch];
      auto is_here = [&](int k) {
        const int source = first + k;
        return source >= num_ranks || source == rank || stage.try_recv(source, i, units[k]);
      };
      arrived = wait_until(
          mem, stage.epoch,
          [&] {
            bool all = true;
            LLC_UNROLL
            for (int k = 0; k < kBatch; ++k) all &= is_here(k);
            return all;
          },
          [&] {
            for (int k = 0; k < kBatch; ++k) {
              if (!is_here(k)) return first + k;
            }
            return rank;
          });
      LLC_UNROLL
      for (int k = 0; k < kBatch; ++k) {
        const int source = first + k;
        if (arrived && source < num_ranks && source != rank) {
          message.write(mem, source * plan.part + begin + i, units[k]);
        }
      }
    }
  });
  return arrived;
}

// In place is allowed: an output unit can only be there once its line was whole, so behind this rank's read of it.
template <class Format, int ranks, class Memory, class Group, class Input>
LLC_FN void two_shot_ll128(Memory& mem, const Group& group, const Scratch& scratch, const Input& message,
                           const Plan& plan) {
  using Protocol = Ll128<Memory>;
  using Stage = typename Protocol::template Stage<Format, Group>;
  using Unit = typename Format::Unit;
  const int num_ranks = ranks == 0 ? scratch.shape.num_ranks : ranks;
  LineWork<Format, ranks, Stage, Memory, Group, Input> work(mem, group, message, plan, num_ranks);
  run_epochs<Protocol, Format>(
      mem, group, scratch, plan, 0, [](uint32_t, uint32_t) {},
      [&](const Stage& stage, uint32_t begin, uint32_t count) { work.send(stage, begin, count); },
      [&](const Stage& stage, uint32_t begin, uint32_t count, bool) {
        return work.receive_own(stage, begin, count) &&
               receive_gathered<ranks>(mem, group, stage, message, plan, num_ranks, begin, count);
      },
      [&](uint32_t begin, uint32_t count) {
        for (uint32_t i = group.rank; i < count; i += group.size) {
          for (int p = 0; p < num_ranks; ++p) {
            message.write(mem, p * plan.part + begin + i, poison<typename Format::Element, Unit>());
          }
        }
      });
}

}  // namespace LLC_ISA
}  // namespace llcoll
