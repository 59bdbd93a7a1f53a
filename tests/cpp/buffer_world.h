// Ranks for the tests of LLBuffer: processes with one thread each, or threads in groups, over shared memory.
#pragma once

#include <barrier>
#include <memory>
#include <thread>

#include "llcoll/group.h"
#include "llcoll/host_wait.h"
#include "llcoll/ll_group.h"
#include "ranks.h"

namespace {

// The members of a group as threads.
struct Team {
  explicit Team(uint32_t size) : gate(size) {}
  std::barrier<> gate;
  std::atomic<uint32_t> votes[2] = {0, 0};
};
struct Threads {
  static constexpr bool kOnce = false;
  uint32_t rank = 0;
  uint32_t size = 1;
  uint32_t channel = 0;
  Team* team = nullptr;
  mutable uint32_t turn = 0;

  void sync() const { team->gate.arrive_and_wait(); }
  bool any(bool value) const {
    std::atomic<uint32_t>& votes = team->votes[turn++ & 1];
    votes += value;
    sync();
    const bool result = votes != 0;
    sync();
    votes = 0;  // the other counter serves the next call, so nobody counts here before a barrier
    return result;
  }
  static constexpr bool kOneEpoch = false;
  static constexpr uint32_t launch = 0;
  static constexpr uint32_t last_launch = 0;
  bool may_overlap() const { return false; }
  void trigger() const {}
  template <class F>
  void each(uint32_t n, F&& f) const {
    for (uint32_t i = rank; i < n; i += size) f(i);
  }
};

// All ranks' buffers, shared by processes forked later.
class Buffers {
 public:
  Buffers(LlMode mode, const BufferShape& shape) : shape_(shape) {
    bytes_ = (shape.bytes() + 4095) / 4096 * 4096;
    void* memory = mmap(nullptr, bytes_ * shape.num_ranks, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    EXPECT(memory != MAP_FAILED);
    for (int rank = 0; rank < shape.num_ranks; ++rank) {
      memory_[rank] = static_cast<char*>(memory) + rank * bytes_;
      init_ll_buffer(shape, mode, memory_[rank]);
    }
  }
  ~Buffers() { munmap(memory_[0], bytes_ * shape_.num_ranks); }
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;

  LlArgs args(int rank, double timeout_s = 20) const {
    return make_ll_args(shape_, rank, memory_, static_cast<uint64_t>(timeout_s * 1e9));
  }
  const BufferShape& shape() const { return shape_; }
  char* memory(int rank) const { return memory_[rank]; }
  BufferRecord& record(int rank, uint32_t block = 0) const {
    return reinterpret_cast<BufferRecord*>(memory_[rank] + shape_.records_offset())[block];
  }
  const FailureRecord& failure(int rank) const {
    return *reinterpret_cast<const FailureRecord*>(memory_[rank] + sizeof(DeviceControl));
  }
  // Every rank's records, as if `epoch` epochs had passed.
  void start_at(uint64_t epoch) const {
    for (int rank = 0; rank < shape_.num_ranks; ++rank) {
      for (uint32_t block = 0; block < shape_.num_blocks; ++block) {
        record(rank, block) = {epoch, 0, static_cast<uint16_t>(epoch % shape_.num_parts()), 0};
      }
    }
  }

 private:
  BufferShape shape_;
  uint64_t bytes_;
  char* memory_[kMaxRanks];
};

template <LlMode mode, class Group = Solo>
using HostBuffer = LLBuffer<mode, HostMemory, Group>;

// Known bits for (rank, call, index): every bit pattern comes up, those of empty slots too.
inline uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}
template <class T>
T value_of(int from, int to, uint64_t call, uint32_t i) {
  unsigned char bytes[sizeof(T)];
  const uint64_t key = mix(mix(call * 72 + from) * 72 + to) + i;
  for (size_t b = 0; b < sizeof(T); ++b) bytes[b] = static_cast<unsigned char>(mix(key * 16 + b / 8) >> (8 * (b % 8)));
  if (key % 5 == 0) std::memset(bytes, 0xFF, sizeof bytes);
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}
// `sent` as it may arrive: in sentinel mode one NaN stands in for another, word by word.
template <LlMode mode, class T>
bool same(const T& sent, const T& got) {
  if (std::memcmp(&sent, &got, sizeof(T)) == 0) return true;
  using Element = typename ElementOf<T>::type;
  if constexpr (mode == LlMode::kSentinel && !std::is_void_v<Element>) {
    typename Element::Word words[sizeof(T) / sizeof(typename Element::Word)];
    std::memcpy(words, &sent, sizeof(T));
    for (auto& word : words) word = ~word == 0 ? Element::kNan : word;
    return std::memcmp(words, &got, sizeof(T)) == 0;
  }
  return false;
}

}  // namespace
