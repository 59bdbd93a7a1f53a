#include "sim/machine.h"

#include <cstring>

namespace llcoll::sim {
namespace {

typedef uint8_t Sixteen __attribute__((vector_size(16)));

int blocks(int num_objects) { return (num_objects + 15) / 16; }

}  // namespace

Machine::Machine(std::vector<uint32_t> initial, Chooser& chooser)
    : chooser_(chooser),
      initial_(std::move(initial)),
      object_of_word_(initial_.size()),
      messages_(kMaxMessages),
      views_(kMaxViews) {}

void Machine::reset_object(int object) {
  // The initial message of object i is message i + 1: both arrays begin with them.
  Stored& message = messages_[object + 1];
  message = Stored{};
  const Footprint& at = footprints_[object];
  std::memcpy(message.words, &initial_[at.word], 4u * at.num_words);
  objects_[object] = Object{static_cast<uint16_t>(object + 1), 1};
}

void Machine::reset() {
  for (int object = 0; object < num_objects_; ++object) reset_object(object);
  num_messages_ = kMaxObjects + 1;
  num_views_ = 1;
  num_stores_ = num_additions_ = 0;
  num_watched_ = 0;
  overflow_ = nullptr;
  clear(views_[0]);
}

// -1: the access does not match the footprints that are there.
int Machine::object_at(uint32_t word, int num_words) {
  const int found = object_of_word_[word] - 1;
  if (found >= 0) {
    const Footprint& at = footprints_[found];
    return at.word == word && at.num_words == num_words ? found : -1;
  }
  for (int i = 0; i < num_words; ++i) {
    if (object_of_word_[word + i] != 0) return -1;
  }
  if (num_objects_ == kMaxObjects) {
    overflow_ = "too many objects";
    return 0;
  }
  const int object = num_objects_++;
  if (object % 16 == 0) forget_from(object);
  footprints_[object] = {word, num_words};
  for (int i = 0; i < num_words; ++i) object_of_word_[word + i] = static_cast<uint16_t>(object + 1);
  reset_object(object);
  return object;
}

// Views hold leftovers beyond the objects they were made for.
void Machine::forget_from(int object) {
  const auto forget = [&](View& view) { std::memset(view.at + object, 0, 16); };
  for (View* view : outer_views_) forget(*view);
  for (Ordering* thread : threads_) {
    forget(thread->current);
    forget(thread->pending);
    forget(thread->streamed);
  }
  for (int v = 0; v < num_views_; ++v) forget(views_[v]);
}

uint16_t Machine::message_at(int object, int back) const {
  uint16_t id = objects_[object].last;
  for (int i = 0; i < back; ++i) id = messages_[id].previous;
  return id;
}

// Accesses of different sizes to one place have no order that a program could rely on: the newest bytes.
void Machine::load_loosely(uint32_t word, int num_words, uint32_t* out) const {
  for (int i = 0; i < num_words; ++i) out[i] = newest(word + i);
}

uint32_t Machine::newest(uint32_t word) const {
  const int object = object_of_word_[word] - 1;
  if (object < 0) return initial_[word];
  return messages_[objects_[object].last].words[word - footprints_[object].word];
}

bool Machine::is_settled(const View& view, uint32_t word) const {
  const int object = object_of_word_[word] - 1;
  return object < 0 || view.at[object] + 1 == objects_[object].count;
}

void Machine::settle(uint32_t word) {
  const int object = object_of_word_[word] - 1;
  for (Ordering* thread : threads_) thread->current.at[object] = static_cast<Position>(objects_[object].count - 1);
  for (View* view : outer_views_) view->at[object] = static_cast<Position>(objects_[object].count - 1);
}

void Machine::store_loosely(Ordering& thread, uint32_t word, int num_words, const uint32_t* in) {
  for (int i = 0; i < num_words; ++i) {
    int object = object_of_word_[word + i] - 1;
    if (object < 0) object = object_at(word + i, 1);
    uint32_t words[4];
    const Footprint& at = footprints_[object];
    std::memcpy(words, messages_[objects_[object].last].words, sizeof words);
    words[word + i - at.word] = in[i];
    insert(thread, object, 0, words, 0, thread.released, Store::kStrong);
  }
}

void Machine::load(Ordering& thread, uint32_t word, int num_words, bool strong, uint32_t* out, bool acquire) {
  const int object = object_at(word, num_words);
  if (object < 0) return load_loosely(word, num_words, out);
  const int count = objects_[object].count;
  const int first = thread.current.at[object];
  const uint32_t back = count - first > 1 ? chooser_.choose(ChoiceKind::kLoad, count - first) : 0;
  const Stored& message = messages_[message_at(object, back)];
  std::memcpy(out, message.words, 4u * num_words);
  if (back > 0) thread.stale = true;
  watch(object);
  if (strong) {  // a plain load promises nothing about the next one
    thread.current.at[object] = static_cast<Position>(count - 1 - back);
    if (message.released != 0) join(acquire ? thread.current : thread.pending, views_[message.released]);
  }
  if (trace) note(strong ? "load" : "get ", word, num_words, out, back);
}

void Machine::store(Ordering& thread, uint32_t word, int num_words, const uint32_t* in, Store kind) {
  ++num_stores_;
  thread.published = true;
  const int object = object_at(word, num_words);
  if (object < 0) return store_loosely(thread, word, num_words, in);
  const int count = objects_[object].count;
  int first = thread.current.at[object];
  if (thread.streamed.at[object] > first) first = thread.streamed.at[object];  // its own store to the same place
  uint32_t back = count - 1 - first > 0 ? chooser_.choose(ChoiceKind::kStore, count - first) : 0;
  while (back > 0 && messages_[message_at(object, back - 1)].addition != 0) --back;
  if (trace) note("store", word, num_words, in, back);
  insert(thread, object, back, in, 0, kind == Store::kStrong ? thread.released : uint16_t{0}, kind);
}

void Machine::insert(Ordering& thread, int object, int back, const uint32_t* words, uint32_t addition,
                     uint16_t released, Store kind) {
  Object& o = objects_[object];
  if (num_messages_ == kMaxMessages || o.count == kMaxHistory) {
    overflow_ = "too many stores";
    return;
  }
  const auto id = static_cast<uint16_t>(num_messages_++);
  Stored& message = messages_[id];
  std::memcpy(message.words, words, 4u * footprints_[object].num_words);
  message.released = released;
  message.addition = addition;
  const int position = o.count - back;
  if (back == 0) {
    message.previous = o.last;
    o.last = id;
  } else {
    Stored& next = messages_[message_at(object, back - 1)];
    message.previous = next.previous;
    next.previous = id;
    const auto bump = [&](View& view) {
      if (view.at[object] >= position) ++view.at[object];
    };
    for (Ordering* other : threads_) {
      bump(other->current);
      bump(other->pending);
      bump(other->streamed);
    }
    for (View* view : outer_views_) bump(*view);
    for (int v = 1; v < num_views_; ++v) bump(views_[v]);
  }
  ++o.count;
  (kind == Store::kStreaming ? thread.streamed : thread.current).at[object] = static_cast<Position>(position);
}

void Machine::join(View& to, const View& from) const {
  for (int b = 0; b < blocks(num_objects_); ++b) {
    auto* a = reinterpret_cast<Sixteen*>(to.at) + b;
    const Sixteen other = reinterpret_cast<const Sixteen*>(from.at)[b];
    *a = *a > other ? *a : other;
  }
}

void Machine::copy(View& to, const View& from) const { std::memcpy(to.at, from.at, 16u * blocks(num_objects_)); }
void Machine::clear(View& view) const { std::memset(view.at, 0, 16u * blocks(num_objects_)); }

uint16_t Machine::keep(const View& view) {
  const size_t bytes = 16u * blocks(num_objects_);
  if (std::memcmp(views_[num_views_ - 1].at, view.at, bytes) == 0) return static_cast<uint16_t>(num_views_ - 1);
  if (num_views_ == kMaxViews) {
    overflow_ = "too many fences";
    return 0;
  }
  copy(views_[num_views_], view);
  return static_cast<uint16_t>(num_views_++);
}

void Machine::fence_acquire(Ordering& thread) { join(thread.current, thread.pending); }
void Machine::fence_release(Ordering& thread) {
  thread.released = keep(thread.current);
  thread.published = true;
}
void Machine::sfence(Ordering& thread) { join(thread.current, thread.streamed); }

uint32_t Machine::sum_of(const uint16_t* objects, int count) const {
  uint32_t sum = 0;
  for (int i = 0; i < count; ++i) sum += objects_[objects[i]].count;
  return sum;
}
uint32_t Machine::watch_sum() const { return sum_of(watched_, num_watched_); }

}  // namespace llcoll::sim
