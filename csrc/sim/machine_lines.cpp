// Lines of several parts that are added to as one, and loaded as one or not.
//
// Each part has a history of its own, since a line is emptied part by part. An addition comes to rest in every part at
// once; where it stands among the other stores to a part is open, as for any store. A load of the whole line is a cut:
// each addition is in all parts that it returns or in none.
#include <algorithm>
#include <cstring>

#include "sim/machine.h"

namespace llcoll::sim {
namespace {

constexpr int kMaxParts = 8;
constexpr int kPartWords = 4;

}  // namespace

void Machine::add_part(Ordering& thread, uint32_t word, const uint32_t* in, AddWords add, uint32_t number) {
  ++num_stores_;
  thread.published = true;
  const int object = object_at(word, kPartWords);
  if (object < 0) {
    overflow_ = "an addition of another size than the other accesses";
    return;
  }
  // Behind any message from the view on whose place is still free.
  const int count = objects_[object].count;
  const int first = thread.current.at[object];
  uint32_t back = count - first > 1 ? chooser_.choose(ChoiceKind::kStore, count - first) : 0;
  while (back > 0 && messages_[message_at(object, back - 1)].addition != 0) --back;
  const Stored& before = messages_[message_at(object, back)];
  uint32_t sums[kPartWords];
  for (int w = 0; w < kPartWords; ++w) sums[w] = add(before.words[w], in[w]);
  // A release sequence goes on through additions.
  uint16_t released = thread.released;
  if (before.released != 0 && before.released != released) {
    View both;
    copy(both, views_[before.released]);
    join(both, views_[released]);
    released = keep(both);
  }
  if (trace) note("add  ", word, kPartWords, sums, back);
  insert(thread, object, back, sums, number, released, Store::kStrong);
}

void Machine::add_line(Ordering& thread, uint32_t word, int num_parts, const uint32_t* in, AddWords add) {
  const uint32_t number = begin_addition();
  for (int p = 0; p < num_parts; ++p) add_part(thread, word + kPartWords * p, in + kPartWords * p, add, number);
}

void Machine::load_part(Ordering& thread, uint32_t line, int num_parts, int part, uint32_t* out) {
  load(thread, line + kPartWords * part, kPartWords, true, out);
  const int own = object_at(line + kPartWords * part, kPartWords);
  uint16_t id = message_at(own, objects_[own].count - 1 - thread.current.at[own]);
  for (int at = thread.current.at[own]; at > 0; --at, id = messages_[id].previous) {
    const uint32_t seen = messages_[id].addition;
    if (seen == 0) continue;
    for (int p = 0; p < num_parts; ++p) {
      const int object = object_at(line + kPartWords * p, kPartWords);
      uint16_t other = objects_[object].last;
      for (int q = objects_[object].count - 1; q > thread.current.at[object]; --q, other = messages_[other].previous) {
        if (messages_[other].addition != seen) continue;
        thread.current.at[object] = static_cast<Position>(q);
        break;
      }
    }
  }
}

void Machine::load_line(Ordering& thread, uint32_t word, int num_parts, uint32_t* out, bool whole) {
  if (!whole) {
    for (int p = 0; p < num_parts; ++p) load(thread, word + kPartWords * p, kPartWords, true, out + kPartWords * p);
    return;
  }
  Ordering* threads[kMaxParts];
  for (Ordering*& one : threads) one = &thread;
  load_parts(threads, word, num_parts, out);
}

void Machine::load_parts(Ordering* const* threads, uint32_t word, int num_parts, uint32_t* out) {
  int objects[kMaxParts];
  uint32_t open[kMaxHistory];  // additions that the view leaves open, newest first
  int num_open = 0;
  uint32_t least = 0;  // the newest that it does not
  for (int p = 0; p < num_parts; ++p) {
    const int object = objects[p] = object_at(word + kPartWords * p, kPartWords);
    if (object < 0) {
      overflow_ = "a load of a line of another size than the other accesses";
      return;
    }
    watch(object);
    uint16_t id = objects_[object].last;
    for (int at = objects_[object].count - 1; at >= 0; --at, id = messages_[id].previous) {
      const uint32_t addition = messages_[id].addition;
      if (addition == 0) continue;
      if (at <= threads[p]->current.at[object]) {
        least = std::max(least, addition);
        break;
      }
      if (std::find(open, open + num_open, addition) == open + num_open && num_open < kMaxHistory) {
        open[num_open++] = addition;
      }
    }
  }
  std::sort(open, open + num_open, [](uint32_t a, uint32_t b) { return a > b; });
  while (num_open > 0 && open[num_open - 1] <= least) --num_open;
  const uint32_t older = num_open > 0 ? chooser_.choose(ChoiceKind::kLoad, static_cast<uint32_t>(num_open) + 1) : 0;
  const uint32_t cut = older == static_cast<uint32_t>(num_open) ? least : open[older];
  for (int p = 0; p < num_parts; ++p) {
    Ordering& thread = *threads[p];
    if (older > 0) thread.stale = true;
    const int object = objects[p];
    const int count = objects_[object].count;
    const int first = thread.current.at[object];
    // The newest place with nothing beyond the cut at or before it, and the oldest that holds all up to it.
    int newest = count - 1, oldest = first;
    uint16_t id = objects_[object].last;
    for (int at = count - 1; at > first; --at, id = messages_[id].previous) {
      const uint32_t addition = messages_[id].addition;
      if (addition > cut) newest = at - 1;
      if (addition != 0 && addition <= cut) {
        oldest = at;
        break;
      }
    }
    if (oldest > newest) oldest = newest;
    uint32_t back = static_cast<uint32_t>(count - 1 - newest);
    if (newest > oldest) {
      const uint32_t more = chooser_.choose(ChoiceKind::kLoad, static_cast<uint32_t>(newest - oldest) + 1);
      if (more > 0) thread.stale = true;
      back += more;
    }
    const Stored& message = messages_[message_at(object, static_cast<int>(back))];
    std::memcpy(out + kPartWords * p, message.words, sizeof(uint32_t) * kPartWords);
    thread.current.at[object] = static_cast<Position>(static_cast<uint32_t>(count) - 1 - back);
    if (message.released != 0) join(thread.pending, views_[message.released]);
    if (trace) note("load", word + kPartWords * p, kPartWords, message.words, static_cast<int>(back));
  }
}

}  // namespace llcoll::sim
