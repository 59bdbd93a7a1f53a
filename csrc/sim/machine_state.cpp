// The state as a number and as bytes, for the explorer.
#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "sim/machine.h"
#include "sim/mix.h"

namespace llcoll::sim {

uint64_t Machine::hash_view(const View& view) const { return mix_bytes(view.at, num_objects_, 1); }

uint64_t Machine::hash_thread(const Ordering& thread) const {
  uint64_t h = mix(hash_view(thread.current), hash_view(thread.pending));
  h = mix(h, hash_view(thread.streamed));
  h = mix(h, hash_view(views_[thread.released]));
  return mix(h, uint64_t{thread.published} << 1 | uint64_t{thread.stale});
}

// Histories by content: where a message lies in the pool tells only in which order it was made.
uint64_t Machine::hash() const {
  uint64_t released[kMaxViews];
  for (int v = 0; v < num_views_; ++v) released[v] = hash_view(views_[v]);
  uint64_t h = 0;
  for (int object = 0; object < num_objects_; ++object) {
    if (objects_[object].count == 1) continue;
    h = mix(h, static_cast<uint64_t>(object));
    uint16_t id = objects_[object].last;
    for (int i = 1; i < objects_[object].count; ++i) {
      const Stored& m = messages_[id];
      uint64_t low, high;
      std::memcpy(&low, &m.words[0], 8);
      std::memcpy(&high, &m.words[2], 8);
      h = mix(mix(h, low), mix(high, released[m.released] + m.addition));
      id = m.previous;
    }
  }
  return h;
}

void Machine::save(std::vector<char>& to) const {
  const auto put = [&](const void* from, size_t bytes) {
    const char* first = static_cast<const char*>(from);
    to.insert(to.end(), first, first + bytes);
  };
  const int32_t head[6] = {num_objects_, num_messages_,
                           num_views_,   static_cast<int32_t>(num_stores_),
                           num_watched_, static_cast<int32_t>(num_additions_)};
  put(head, sizeof head);
  put(watched_, sizeof(uint16_t) * num_watched_);
  put(objects_, sizeof(Object) * num_objects_);
  put(&messages_[1], sizeof(Stored) * num_objects_);
  put(&messages_[kMaxObjects + 1], sizeof(Stored) * (num_messages_ - kMaxObjects - 1));
  for (int v = 1; v < num_views_; ++v) put(&views_[v], num_objects_);
}

const char* Machine::load_state(const char* from) {
  const auto get = [&](void* to, size_t bytes) {
    std::memcpy(to, from, bytes);
    from += bytes;
  };
  int32_t head[6];
  get(head, sizeof head);
  const int num_objects = head[0];
  num_messages_ = head[1];
  num_views_ = head[2];
  num_stores_ = static_cast<uint32_t>(head[3]);
  num_watched_ = head[4];
  num_additions_ = static_cast<uint32_t>(head[5]);
  get(watched_, sizeof(uint16_t) * num_watched_);
  get(objects_, sizeof(Object) * num_objects);
  get(&messages_[1], sizeof(Stored) * num_objects);
  // Objects that were found later, on another branch, are as at the start here.
  for (int object = num_objects; object < num_objects_; ++object) reset_object(object);
  get(&messages_[kMaxObjects + 1], sizeof(Stored) * (num_messages_ - kMaxObjects - 1));
  for (int v = 1; v < num_views_; ++v) {
    get(&views_[v], num_objects);
    std::memset(views_[v].at + num_objects, 0, (num_objects_ + 15) / 16 * 16 - num_objects);
  }
  return from;
}

void Machine::note(const char* what, uint32_t word, int num_words, const uint32_t* words, int back) {
  char text[160];
  int at = std::snprintf(text, sizeof text, "%s %s @%" PRIu32 ":", trace_prefix.c_str(), what, word);
  for (int i = 0; i < num_words; ++i) at += std::snprintf(text + at, sizeof text - at, " %08" PRIx32, words[i]);
  if (back > 0) std::snprintf(text + at, sizeof text - at, "  (%d behind the newest)", back);
  trace->push_back(text);
}

}  // namespace llcoll::sim
