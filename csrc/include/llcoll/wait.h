// The only spin loop. Bounded and abortable: a collective that cannot finish is an answer, not a hang.
//
// The memory policy decides how long:
//   Patience                  the state of one wait, cheap to make
//   keep_polling(patience)    after each failed poll; false once per burst: time to think
//   wait_on(patience, source, epoch)   between bursts, told who is missing. False: stop. In the course of a long wait
//   it
//                             publishes whom this rank awaits, sees aborts, and at the limit waits a grace time, finds
//                             the culprit and reports it
//   stop_waiting(patience)    it arrived: withdraws what wait_on published
#pragma once

#include "llcoll/word.h"

namespace llcoll {
inline namespace LLC_ISA {

// Follows "a awaits b" from `source` to its end, so that an innocent waiter is not named. A circle (two ranks in
// different collectives) ends at its first rank. awaited_by(rank): rank + 1 of whom it awaits, 0: nobody.
template <class AwaitedBy>
LLC_FN int find_culprit(int self, int source, int num_ranks, AwaitedBy&& awaited_by) {
  int culprit = source;
  for (int step = 0; step < num_ranks; ++step) {
    const int next = awaited_by(culprit) - 1;
    if (next < 0 || next >= num_ranks || next == source || next == self) break;
    culprit = next;
  }
  return culprit;
}

// Polls `attempt` until it is true. `missing()` names a source that has not arrived.
// False: the caller stops waiting AND sending; a rank that goes on sending gives its peers silently wrong data.
template <class Memory, class Try, class Missing>
LLC_FN bool wait_until(const Memory& mem, uint64_t epoch, Try&& attempt, Missing&& missing) {
  typename Memory::Patience patience{};
  while (!attempt()) {  // one copy of it: what a kernel fetches at its start counts as much as what it waits for
    if (LLC_UNLIKELY(!mem.keep_polling(patience)) && !mem.wait_on(patience, missing(), epoch)) return false;
  }
  mem.stop_waiting(patience);
  return true;
}

// The same for lanes that must poll as one: `attempt` is called by all lanes of a warp together and may use shuffles;
// the answer is one for all of them.
template <class Memory, class Group, class Try, class Missing>
LLC_FN bool wait_together(const Memory& mem, const Group& group, uint64_t epoch, Try&& attempt, Missing&& missing) {
  if (group.all_lanes(attempt())) return true;
  typename Memory::Patience patience{};
  for (;;) {
    // Counts alike in every lane, so all of them come to the vote.
    if (!mem.keep_polling(patience) && group.any_lane(!mem.wait_on(patience, missing(), epoch))) return false;
    if (group.all_lanes(attempt())) break;
  }
  mem.stop_waiting(patience);
  return true;
}

}  // namespace LLC_ISA
}  // namespace llcoll
