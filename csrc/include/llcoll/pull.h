// Flag all-reduce that pulls, one-shot and two-shot: see pull_stage.h for the words and their rules.
#pragma once

#include "llcoll/pull_stage.h"

namespace llcoll {
inline namespace LLC_ISA {

template <class Type, int ranks, bool by_multicast = false, class Op, class Memory, class Group>
LLC_FN void one_shot_pull(Memory& mem, const Group& group, const Scratch& scratch, const Symmetric& symmetric,
                          const Message& message, const Plan& plan, Op op) {
  using Protocol = Pull<Memory>;
  using Unit = typename Protocol::Unit;
  constexpr int kUnroll = kPullUnroll<ranks>;
  const int num_ranks = ranks == 0 ? scratch.shape.num_ranks : ranks;
  const Places<Group> places{group};
  const bool is_symmetric = symmetric.input != 0;
  // The result may replace the input only once every peer has read it.
  const bool is_held = is_symmetric && message.input == message.output;
  bool is_first = true;
  run_epochs<Protocol, Type>(
      mem, group, scratch, plan, pull_regions(1, num_ranks), [](uint32_t, uint32_t) {},
      [&](const auto& stage, uint32_t begin, uint32_t count) {
        if (!is_symmetric) {
          Unit* to = stage.staged(scratch.rank, 0);
          if (begin + count <= message.wide_inputs) {
            move_parts<1, Unit>(
                group, 1, count, [&](int) { return count; },
                [&](int, uint32_t i) { return message.template read_whole<Unit>(mem, begin + i); },
                [&](int, uint32_t i, const Unit& unit) { mem.put(to + i, unit); });
          } else {
            move_slowly(
                group, 1, [&](int) { return count; },
                [&](int, uint32_t i) { mem.put(to + i, message.template read<Unit>(mem, begin + i)); });
          }
          group.sync();
        }
        // Symmetric input of the first epoch: earlier grids wrote it, and their end released it.
        stage.template announce<by_multicast>(0, symmetric.input,
                                              !is_symmetric || !is_first || !Memory::kGridEndReleases, false,
                                              [](int) { return true; });
        is_first = false;
      },
      [&](const auto& stage, uint32_t begin, uint32_t count, bool last) {
        const uint64_t offset = uint64_t{begin} * sizeof(Unit);
        auto place = [&](int rank, uint32_t input) {
          places.input(rank) = input != 0 ? place_address(scratch, symmetric, rank, input) + offset
                                          : reinterpret_cast<uint64_t>(stage.staged(rank, 0));
          places.output(rank) = input;
        };
        if (group.rank == 0) place(scratch.rank, symmetric.input);
        if (group.any(!stage.poll(0, [&](int peer, uint64_t what) { place(peer, uint32_t(what)); }))) return false;

        bool has_symmetric_peer = false;
        for (int r = 0; r < num_ranks; ++r) has_symmetric_peer |= r != scratch.rank && places.output(r) != 0;
        const bool is_whole = begin + count <= message.wide_outputs;
        bool arrived = true;
        uint32_t num_kept = 0;
        for (uint32_t first = 0;; first += kUnroll * group.size) {
          const uint32_t base = first + group.rank;
          Unit sums[kUnroll];
          pull_and_reduce<Type, ranks>(mem, group, num_ranks, base, count, op, sums);
          const bool is_last_pass = first + kUnroll * group.size >= count;
          if (is_last_pass) {
            if (has_symmetric_peer) {
              group.sync();  // every member's loads are back: their values were used
              arrived = stage.announce(kDone, 0, true, true, [&](int peer) { return places.output(peer) != 0; });
            }
            if (is_held) arrived = !group.any(!arrived || !stage.poll(kDone, [](int, uint64_t) {}));
          }
          if (is_held && !is_last_pass) {
            // Nobody reads the staging of a symmetric rank.
            each_of_pass<kUnroll>(group, base, count,
                                  [&](uint32_t i, int k) { mem.put(stage.staged(scratch.rank, 0) + i, sums[k]); });
            num_kept = first + kUnroll * group.size;
          } else if (is_whole && arrived) {
            each_of_pass<kUnroll>(group, base, count,
                                  [&](uint32_t i, int k) { message.write_whole(mem, begin + i, sums[k]); });
          } else if (arrived) {
            each_of_pass<kUnroll>(group, base, count,
                                  [&](uint32_t i, int k) { message.write(mem, begin + i, sums[k]); });
          }
          if (is_last_pass) break;
        }
        if (is_held && arrived) {
          for (uint32_t i = group.rank; i < num_kept; i += group.size) {
            message.write(mem, begin + i, mem.get(stage.staged(scratch.rank, 0) + i));
          }
        } else if (is_symmetric && !is_held && last && arrived) {
          arrived = stage.poll(kDone, [](int, uint64_t) {});
        }
        return arrived;
      },
      [&](uint32_t begin, uint32_t count) {
        for (uint32_t i = group.rank; i < count; i += group.size) message.write(mem, begin + i, poison<Type, Unit>());
      });
}

// Where the group has a multicast address, `at_once` lets the switch add: the sum of all ranks' units in one load, the
// result to all ranks in one store (NVLink SHARP). That needs every rank's part at the same offset: all staged, or all
// tensors at one place of the pool; the ready words tell, and else everything goes as without. The order in which the
// switch adds is its own: not for those who want the same bits as the other algorithms.
//
// The owner alone reads its part of every input, so it may write the result into every output, in place too, as soon as
// it has read: no rank waits for another's reads. Its phase-1 word says that both are over.
template <class Type, int ranks, bool at_once = false, class Op, class Memory, class Group>
LLC_FN void two_shot_pull(Memory& mem, const Group& group, const Scratch& scratch, const Symmetric& symmetric,
                          const Message& message, const Plan& plan, Op op) {
  using Protocol = Pull<Memory>;
  using Unit = typename Protocol::Unit;
  constexpr int kUnroll = kPullUnroll<ranks>;
  const int num_ranks = ranks == 0 ? scratch.shape.num_ranks : ranks;
  const int rank = scratch.rank;
  const Places<Group> places{group};
  const uint32_t num_units = static_cast<uint32_t>((message.num_bytes + sizeof(Unit) - 1) / sizeof(Unit));
  const uint32_t num_whole = static_cast<uint32_t>(message.num_bytes / sizeof(Unit));
  const uint32_t gather_region = pull_region_for_all(1, num_ranks);
  // Of units [begin, begin + count) of a part, those inside the message: symmetric memory is not padded.
  auto num_inside = [&](int part, uint32_t begin, uint32_t count) {
    const uint32_t at = part * plan.part + begin;
    return at >= num_units ? 0u : (num_units - at < count ? num_units - at : count);
  };
  const bool is_symmetric = symmetric.input != 0;
  bool is_first = true;
  run_epochs<Protocol, Type>(
      mem, group, scratch, plan, pull_regions(2, num_ranks), [](uint32_t, uint32_t) {},
      [&](const auto& stage, uint32_t begin, uint32_t count) {
        if (!is_symmetric) {
          auto num_staged = [&](int part) { return num_inside(part, begin, count); };
          if (num_units == message.wide_inputs) {
            move_parts<ranks, Unit>(
                group, num_ranks, count, num_staged,
                [&](int part, uint32_t i) {
                  return message.template read_whole<Unit>(mem, part * plan.part + begin + i);
                },
                [&](int part, uint32_t i, const Unit& unit) {
                  mem.put(stage.staged(rank, pull_region(part)) + i, unit);
                });
          } else {
            move_slowly(group, num_ranks, num_staged, [&](int part, uint32_t i) {
              mem.put(stage.staged(rank, pull_region(part)) + i,
                      message.template read<Unit>(mem, part * plan.part + begin + i));
            });
          }
          group.sync();
        }
        stage.template announce<at_once>(0, symmetric.input | uint64_t{symmetric.output} << 32,
                                         !is_symmetric || !is_first || !Memory::kGridEndReleases, false,
                                         [](int) { return true; });
        is_first = false;
      },
      [&](const auto& stage, uint32_t begin, uint32_t count, bool) {
        const uint32_t at = rank * plan.part + begin;
        const uint32_t num_own = num_inside(rank, begin, count);
        auto place = [&](int peer, uint32_t input, uint32_t output) {
          places.input(peer) = input != 0 ? place_address(scratch, symmetric, peer, input) + uint64_t{at} * sizeof(Unit)
                                          : reinterpret_cast<uint64_t>(stage.staged(peer, pull_region(rank)));
          places.output(peer) = output != 0 ? place_address(scratch, symmetric, peer, output) : 0;
        };
        if (group.rank == 0) place(rank, symmetric.input, 0);
        const uint64_t own_word = symmetric.input | uint64_t{symmetric.output} << 32;
        bool differs = false;
        if (group.any(!stage.poll(0, [&](int peer, uint64_t what) {
              place(peer, static_cast<uint32_t>(what), static_cast<uint32_t>(what >> 32));
              differs |= what != own_word;
            }))) {
          return false;
        }
        // Every rank sees the same words, so all decide alike.
        bool goes_at_once = false;
        if constexpr (at_once) goes_at_once = !group.any(differs);
        // Unit `at` of the message in all ranks' memory at once.
        [[maybe_unused]] auto multicast_place = [&](const auto& s, uint32_t place_in_pool, uint32_t unit) {
          const uint64_t offset =
              place_in_pool != 0
                  ? symmetric.pool_offset + uint64_t{place_in_pool - 1} * kPlaceBytes + uint64_t{unit} * sizeof(Unit)
                  : static_cast<uint64_t>(reinterpret_cast<char*>(s.staged(rank, pull_region(rank))) -
                                          scratch.memory[rank]);
          return reinterpret_cast<Unit*>(scratch.multicast + offset);
        };
        const bool is_whole = at + num_own <= num_whole;
        const bool is_output_whole = message.wide_outputs == num_whole;
        bool has_staged_output = false;
        for (int r = 0; r < num_ranks; ++r) has_staged_output |= r != rank && places.output(r) == 0;

        for (uint32_t base = group.rank; at_once && goes_at_once && base < num_own; base += kUnroll * group.size) {
          if constexpr (at_once) {
            const Unit* from = multicast_place(stage, symmetric.input, at);
            // Staged: the result takes the place of what was staged of this part, which nobody else reads.
            Unit* to = multicast_place(stage, symmetric.output, at);
            Unit sums[kUnroll];
            each_of_pass<kUnroll>(group, base, num_own,
                                  [&](uint32_t i, int k) { sums[k] = mem.template multicast_sum<Type>(from + i); });
            each_of_pass<kUnroll>(group, base, num_own, [&](uint32_t i, int k) {
              if (symmetric.output == 0 || at + i < num_whole) {
                mem.multicast_unit(to + i, sums[k]);
                return;
              }
              for (int r = 0; r < num_ranks; ++r) {  // a partial unit: nothing behind the message may be touched
                char* output = r == rank ? message.output : reinterpret_cast<char*>(places.output(r));
                mem.template write_part<Unit>(output, uint64_t{at + i} * sizeof(Unit), message.num_bytes,
                                              message.element_bytes, sums[k]);
              }
            });
          }
        }
        for (uint32_t base = group.rank; !goes_at_once && base < num_own; base += kUnroll * group.size) {
          Unit sums[kUnroll];
          pull_and_reduce<Type, ranks>(mem, group, num_ranks, base, num_own, op, sums);
          if (has_staged_output) {
            each_of_pass<kUnroll>(group, base, num_own,
                                  [&](uint32_t i, int k) { mem.put(stage.staged(rank, gather_region) + i, sums[k]); });
          }
          LLC_UNROLL
          for (int r = 0; r < num_ranks; ++r) {
            // To peers whose output is symmetric, and to this rank's own. The last unit of a message may be partial.
            char* output = r == rank ? message.output : reinterpret_cast<char*>(places.output(r));
            if (output == nullptr) continue;
            if (is_whole && (r != rank || is_output_whole)) {
              each_of_pass<kUnroll>(group, base, num_own, [&](uint32_t i, int k) {
                mem.template write<Unit>(output + uint64_t{at + i} * sizeof(Unit), sums[k]);
              });
            } else {
              each_of_pass<kUnroll>(group, base, num_own, [&](uint32_t i, int k) {
                mem.template write_part<Unit>(output, uint64_t{at + i} * sizeof(Unit), message.num_bytes,
                                              message.element_bytes, sums[k]);
              });
            }
          }
        }
        group.sync();
        const bool is_well = stage.template announce<at_once>(1, 0, true, true, [](int) { return true; });
        bool arrived = is_well && stage.poll(1, [](int, uint64_t) {});
        // With a symmetric output the peers have written everything there.
        if (symmetric.output == 0) {
          if (group.any(!arrived)) return false;
          // The result of part `source`: in its owner's staging, or, at once, in this rank's own.
          auto num_gathered = [&](int source) {
            return source == rank && !goes_at_once ? 0 : num_inside(source, begin, count);
          };
          auto gathered = [&](int source) {
            return goes_at_once ? stage.staged(rank, pull_region(source)) : stage.staged(source, gather_region);
          };
          if (is_output_whole && num_units == num_whole) {
            move_parts<ranks, Unit>(
                group, num_ranks, count, num_gathered,
                [&](int source, uint32_t i) { return mem.get(gathered(source) + i); },
                [&](int source, uint32_t i, const Unit& unit) {
                  message.write_whole(mem, source * plan.part + begin + i, unit);
                });
          } else {
            move_slowly(group, num_ranks, num_gathered, [&](int source, uint32_t i) {
              message.write(mem, source * plan.part + begin + i, mem.get(gathered(source) + i));
            });
          }
        }
        return arrived;
      },
      [&](uint32_t begin, uint32_t count) {
        for (uint32_t i = group.rank; i < count; i += group.size) {
          for (int p = 0; p < num_ranks; ++p) message.write(mem, p * plan.part + begin + i, poison<Type, Unit>());
        }
      });
}

}  // namespace LLC_ISA
}  // namespace llcoll
