// The last calls of a communicator, for people who ask why a job hangs: who made which call, and how far it came.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "llcoll/types.h"

namespace llcoll {

struct CollectiveCall;

enum class CallState : uint32_t {
  kRunning,   // CPU: in the call
  kDone,      // CPU: the result is there; CUDA: the kernel has ended
  kEnqueued,  // CUDA: launched, its end is not known yet
  kCaptured,  // CUDA: part of a graph, whose replays are not calls
  kFailed,
};
const char* name_of(CallState state);

// One recorded call, as a reader gets it.
struct CallRecord {
  uint64_t sequence;  // 1, 2, ...: the same number on every rank for the same call
  uint64_t numel;     // of the whole message or the part, as in CollectiveCall; uneven: all of the splits
  uint64_t position;  // CPU: the protocol's epoch when the call began. CUDA, whose epochs the device keeps: launch id
  Collective kind;
  ReduceOp op;
  DType dtype;
  Algorithm algorithm;
  int root;
  bool is_uneven;
  CallState state;
};

// A ring that calls write and anyone may read at any time: a torn entry is left out of what a reader gets. A call pays
// for eight plain stores (two calls to a cache line), so that it can always be on. Two threads that begin calls of
// torch.distributed at once may get one number: calls without an order have none on the other ranks either.
class FlightRecorder {
 public:
  static constexpr uint64_t kCapacity = 256;

  class Entry {
   public:
    void set_position(uint64_t position) { position_.store(position, std::memory_order_relaxed); }
    void set_state(CallState state) { state_.store(static_cast<uint32_t>(state), std::memory_order_relaxed); }

   private:
    friend class FlightRecorder;
    std::atomic<uint64_t> sequence_{0};  // 0: nothing here, or being written
    std::atomic<uint64_t> numel_{0};
    std::atomic<uint64_t> position_{0};
    std::atomic<uint32_t> what_{0};
    std::atomic<uint32_t> state_{0};
  };
  static_assert(sizeof(Entry) == 32);

  // A call begins; `call` is needed no longer than this. The entry may be written until kCapacity calls later.
  Entry& begin(const CollectiveCall& call, int world_size, uint64_t position);

  uint64_t num_calls() const { return num_calls_.load(std::memory_order_relaxed); }
  // Oldest first; at most kCapacity.
  std::vector<CallRecord> snapshot() const;

 private:
  std::atomic<uint64_t> num_calls_{0};
  alignas(64) Entry entries_[kCapacity];
};

// Ends an entry: as failed where the call throws.
class RecordedCall {
 public:
  RecordedCall(FlightRecorder& recorder, const CollectiveCall& call, int world_size, uint64_t position)
      : entry_(recorder.begin(call, world_size, position)) {}
  ~RecordedCall() { entry_.set_state(state_); }
  RecordedCall(const RecordedCall&) = delete;
  RecordedCall& operator=(const RecordedCall&) = delete;
  void set_position(uint64_t position) { entry_.set_position(position); }
  void end(CallState state) { state_ = state; }

 private:
  FlightRecorder::Entry& entry_;
  CallState state_ = CallState::kFailed;
};

// What a dump says besides the calls.
struct DumpHeader {
  std::string group_name;
  int rank = 0;
  int world_size = 1;
  const char* device = "";  // "cpu" or "cuda"
  double timeout_s = 0;
  int awaited = -1;  // rank that this one is waiting for, -1: none, or not known
  uint64_t num_calls = 0;
  std::string reason;
};

// The dump as JSON: docs/failures.md describes it.
std::string dump_to_json(const DumpHeader& header, const std::vector<CallRecord>& calls);

// Writes `text` to the file `path`, which is made for this user alone where it is not there.
void write_record(const std::string& path, const std::string& text);

// Writes `text` to a new file of this user alone in LLCOLL_DUMP_DIR (default: TMPDIR, or /tmp) and returns its path.
// "" where LLCOLL_DUMP_DIR is "none", or where it cannot be written (said on stderr): the error that made the dump
// must come out, whatever becomes of the dump.
std::string write_dump_file(const DumpHeader& header, const std::string& text);

}  // namespace llcoll
