// The memory of the simulated machine: a view machine, weaker than any GPU in all that the protocols can observe.
//
// Each object (one access's footprint) has a history: its messages in coherence order. A thread's view says which
// message of each object it must not read behind. A load may return ANY message from the view on, so stores become
// visible to each thread in any order. A store may be placed ANYWHERE behind the thread's view, so a store may come to
// rest after one that was issued later. Only these carry order from thread to thread:
//   release fence -> relaxed store -> relaxed load -> acquire fence     barriers of a CTA     kernel boundaries
// A load never returns a store of the future, so a store does not overtake a load of its own thread (a poll loop's
// exit is a branch, and GPUs do not speculate stores). All scopes are .sys.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace llcoll::sim {

inline constexpr int kMaxObjects = 2048;
inline constexpr int kMaxMessages = 48000;
inline constexpr int kMaxViews = 1200;
inline constexpr int kMaxHistory = 250;

// Which message of each object; positions count from 0, the object's initial value.
using Position = uint8_t;
struct alignas(16) View {
  Position at[kMaxObjects];
};

struct Stored {
  uint32_t words[4];
  uint16_t previous;
  uint16_t released;  // view that an acquiring reader gets; 0: none
  uint32_t addition;  // not 0: follows its predecessor at once, nothing may come to rest between; parts of one addition
                      // share the number
};

struct Object {
  uint16_t last;
  uint16_t count;
};

// What of a thread belongs to the memory model.
struct Ordering {
  View current;   // what this thread must see
  View pending;   // what an acquire fence adds
  View streamed;  // non-temporal stores: not ordered by a release unless sfence came first
  uint16_t released;
  bool published;  // has stored or met others since it last yielded: the next load is a point of interest
  bool stale;      // the poll in progress read behind the newest message
};

// A plain store promises nothing to whoever acquires; a streaming one not even to its own thread's release.
enum class Store { kStrong, kPlain, kStreaming };

enum class ChoiceKind { kThread, kLoad, kStore, kTimeout };

// Whoever decides what is left open. `n` > 1.
class Chooser {
 public:
  virtual uint32_t choose(ChoiceKind kind, uint32_t n) = 0;

 protected:
  ~Chooser() = default;
};

class Machine {
 public:
  // `num_words` 4-byte words of memory with the given contents.
  Machine(std::vector<uint32_t> initial, Chooser& chooser);
  void reset();

  // `acquire`: as if a fence for this one message followed.
  void load(Ordering& thread, uint32_t word, int num_words, bool strong, uint32_t* out, bool acquire = false);
  void store(Ordering& thread, uint32_t word, int num_words, const uint32_t* in, Store kind);
  // Lines of `num_parts` parts of 4 words (machine_lines.cpp). One addition of `in` to all parts, word by word with
  // `add`; a load of all of them, which sees each addition in all parts or in none if `whole`. Relaxed.
  using AddWords = uint32_t (*)(uint32_t, uint32_t);
  void add_line(Ordering& thread, uint32_t word, int num_parts, const uint32_t* in, AddWords add);
  void load_line(Ordering& thread, uint32_t word, int num_parts, uint32_t* out, bool whole);
  // The same where each part has a thread of its own: all parts of one addition share its number.
  uint32_t begin_addition() { return ++num_additions_; }
  void add_part(Ordering& thread, uint32_t word, const uint32_t* in, AddWords add, uint32_t number);
  // One part alone. Premise: an addition made as one is everywhere at once, so who saw it in one part sees it in all.
  void load_part(Ordering& thread, uint32_t line, int num_parts, int part, uint32_t* out);
  void load_parts(Ordering* const* threads, uint32_t word, int num_parts, uint32_t* out);

  void fence_acquire(Ordering& thread);
  void fence_release(Ordering& thread);
  void sfence(Ordering& thread);
  void join(View& to, const View& from) const;
  // Only the objects that are there: views are larger than what most programs touch.
  void copy(View& to, const View& from) const;
  void clear(View& view) const;

  // Views that messages carry never change but for positions; one with the same content is used again.
  uint16_t keep(const View& view);
  const View& kept(uint16_t view) const { return views_[view]; }

  // The newest value, whoever asks: for checks at the end of a call.
  uint32_t newest(uint32_t word) const;
  // Whether a reader with this view is bound to see the newest value.
  bool is_settled(const View& view, uint32_t word) const;
  uint32_t stores() const { return num_stores_; }
  const char* overflow() const { return overflow_; }

  const uint32_t* initial(uint32_t word) const { return &initial_[word]; }

  // The objects that a poll read, to know when it is worth another try.
  void watch_none() { num_watched_ = 0; }
  uint32_t watch_sum() const;
  uint32_t sum_of(const uint16_t* objects, int count) const;
  int num_watched() const { return num_watched_; }
  const uint16_t* watched() const { return watched_; }
  static constexpr int kMaxWatched = 24;

  // All threads see the newest value from now on.
  void settle(uint32_t word);

  // For the explorer: the state in a canonical form (hash) and as bytes (save, load_state).
  uint64_t hash() const;
  uint64_t hash_view(const View& view) const;
  uint64_t hash_thread(const Ordering& thread) const;
  void save(std::vector<char>& to) const;
  const char* load_state(const char* from);
  int num_objects() const { return num_objects_; }
  // Views that live elsewhere: insertions in the middle of a history and new objects have to reach them.
  void set_views(std::vector<Ordering*> threads, std::vector<View*> others) {
    threads_ = std::move(threads);
    outer_views_ = std::move(others);
  }

  std::vector<std::string>* trace = nullptr;
  std::string trace_prefix;

 private:
  int object_at(uint32_t word, int num_words);
  void load_loosely(uint32_t word, int num_words, uint32_t* out) const;
  void store_loosely(Ordering& thread, uint32_t word, int num_words, const uint32_t* in);
  uint16_t message_at(int object, int back) const;
  void insert(Ordering& thread, int object, int back, const uint32_t* words, uint32_t addition, uint16_t released,
              Store kind);
  void watch(int object) {
    if (num_watched_ < kMaxWatched) watched_[num_watched_++] = static_cast<uint16_t>(object);
  }
  void reset_object(int object);
  void forget_from(int object);
  void note(const char* what, uint32_t word, int num_words, const uint32_t* words, int back);

  Chooser& chooser_;
  std::vector<uint32_t> initial_;
  std::vector<uint16_t> object_of_word_;  // 1 + object; footprints never change
  struct Footprint {
    uint32_t word;
    int num_words;
  };
  Footprint footprints_[kMaxObjects];
  Object objects_[kMaxObjects];
  std::vector<Stored> messages_;
  std::vector<View> views_;
  std::vector<Ordering*> threads_;
  std::vector<View*> outer_views_;
  int num_objects_ = 0;
  int num_messages_ = 0;
  int num_views_ = 1;
  uint32_t num_stores_ = 0;
  uint32_t num_additions_ = 0;
  uint16_t watched_[kMaxWatched];
  int num_watched_ = 0;
  const char* overflow_ = nullptr;
};

}  // namespace llcoll::sim
