// What the ops, plans and the C interface see of a backend. No torch, no Python.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "flight_recorder.h"
#include "llcoll/types.h"

namespace llcoll {

enum class Policy : int32_t { kFast, kInvariant };

struct Options {
  std::string group_name;
  int rank = 0;
  int world_size = 1;
  double timeout_s = 0;  // 0: wait forever
  Policy policy = Policy::kFast;
  bool allow_low_precision = false;
  size_t scratch_bytes = 0;             // 0: the backend's default
  size_t pool_bytes = 0;                // CUDA: the symmetric pool, at the end of each rank's buffer
  Algorithm forced = Algorithm::kAuto;  // LLCOLL_ALGORITHM, already agreed over all ranks
  bool debug = false;                   // LLCOLL_DEBUG=1 on every rank
  uint64_t first_epoch = 0;             // tests start just below a wrap
  std::string table;                    // selection (table.h), the same on every rank; empty: the built-in one
  // CPU waits sleep early instead of yielding: what is awaited takes longer than a wake-up, and needs the core.
  bool patient = false;
  int device_index = 0;  // CUDA: the device of the scratch and of every tensor
  // CUDA: the caller may destroy a stream behind its last call there (torch keeps its streams).
  bool streams_may_end = false;
};

// One call over contiguous elements. Pointers may be unaligned. `stream` is a cudaStream_t, ignored on CPU.
//
// `numel` counts elements of the whole message (all-reduce, broadcast, reduce), or of one part where all are equal:
// reduce-scatter, all-gather, all-to-all. A part is what one rank gets from, or gives to, one other; parts lie in rank
// order, without gaps. Unequal ones: `input_splits` (reduce-scatter, all-to-all) and `output_splits` (all-gather,
// all-to-all) hold world_size() numbers of elements each and are read before run() returns; `numel` is then unused.
//
// Input may equal output (all-gather: the rank's own part of the output; reduce-scatter: of the input; all-to-all: not
// with splits); any other overlap is the caller's error. broadcast: `input` is read on the root, `output` written on
// the others (the root's own too where it differs from the input). reduce: `output` is written on the root alone, may
// be null elsewhere.
struct CollectiveCall {
  const void* input;
  void* output;
  size_t numel;
  DType dtype;
  ReduceOp op;
  Algorithm algorithm;
  void* stream;
  Collective kind = Collective::kAllReduce;
  int root = 0;
  const size_t* input_splits = nullptr;
  const size_t* output_splits = nullptr;
};

// Called now and then by a CPU wait once it has lasted longer than a spin: true ends the wait ("interrupted").
// The Python layer installs one that looks for signals; without Python none is set.
void set_interrupt_check(bool (*check)());
bool interrupted();

struct NormCall;

class Communicator {
 public:
  explicit Communicator(Options options) : options_(std::move(options)) {}
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  const Options& options() const { return options_; }
  int rank() const { return options_.rank; }
  int world_size() const { return options_.world_size; }

  // The algorithm that runs for this call on every rank: `requested` (never a pointer or stride), LLCOLL_ALGORITHM
  // or selection. `numel` as in CollectiveCall, with splits that all ranks know the largest; kAllToAllV: unused.
  // kTorch: the caller hands the tensor to torch.distributed. Throws LlcollError where the algorithm cannot serve the
  // collective, type or operator.
  virtual Algorithm resolve(Collective kind, size_t numel, DType dtype, ReduceOp op, Algorithm requested) const = 0;

  // Runs (CPU) or enqueues (CUDA) one call whose algorithm came from resolve().
  virtual void run(const CollectiveCall& call) = 0;

  // An all-reduce whose epilogue is `norm` (norm_call.h), in one launch. False, on every rank alike, where there is no
  // such kernel: then the caller runs the two one after the other, which gives the same bits.
  virtual bool try_run_fused(const CollectiveCall& /*call*/, const NormCall& /*norm*/) { return false; }
  virtual void barrier(void* stream) = 0;
  // CUDA: between these, what the caller puts on `stream` has a place among the calls, as if it were one of them.
  virtual void enter_stream(void* /*stream*/) {}
  virtual void leave_stream(void* /*stream*/) {}
  // False while a call of this rank may still run.
  virtual bool is_idle() { return true; }

  // Throws what is pending: CollectiveTimeout, CollectiveAborted. Cheap.
  virtual void check() = 0;
  // Ends all waits on every rank; later calls raise CollectiveAborted.
  virtual void abort(const std::string& reason) = 0;
  // Debug mode: tells the peers that this rank raised in call `what` instead of taking part.
  virtual void announce_error(const std::string& what) = 0;
  // First call of shutdown: no call may follow. Never waits for a peer.
  virtual void close() = 0;
  bool closed() const { return closed_; }

  // The last calls, as JSON (flight_recorder.h). At any time, from any thread. Calls that run() does not see, those of
  // torch.distributed, are recorded by whoever makes them.
  std::string flight_record(const std::string& reason) { return dump_to_json(dump_header(reason), recorded_calls()); }
  FlightRecorder& recorder() { return recorder_; }

 protected:
  virtual const char* device_name() const = 0;
  // Whom this rank is waiting for, -1: nobody, or not known.
  virtual int awaited() { return -1; }
  virtual std::vector<CallRecord> recorded_calls() { return recorder_.snapshot(); }
  DumpHeader dump_header(const std::string& reason);
  // For errors on their way out: the first timeout or mismatch of a communicator leaves a dump file.
  void note_failure(const std::string& text);

  Options options_;
  bool closed_ = false;
  FlightRecorder recorder_;
  std::atomic<bool> has_dumped_{false};
};

// Registry: group_name -> communicator, one per shared object (so one per device type). "" names the default group.
void register_communicator(const std::string& group_name, std::shared_ptr<Communicator> communicator, bool is_default);
// Borrowed pointer, valid until unregister: ops look it up on each call. Throws LlcollError if there is none.
Communicator& find_communicator(const char* group_name, size_t length);
// The same by hash_of(name): a number that stands for the name in any process. `name_for_errors` may be null.
Communicator& find_communicator(uint64_t name_hash, const char* name_for_errors);
uint64_t hash_of(const char* group_name, size_t length);
bool has_communicator(const char* group_name, size_t length);
std::shared_ptr<Communicator> share_communicator(const std::string& group_name);
// Closes and forgets it; false if there was none.
bool unregister_communicator(const std::string& group_name);

// Names as users write them ("sum", "one_shot_ll"); the parse functions throw LlcollError with the value and the
// choices.
const char* name_of(Collective kind);
const char* name_of(DType dtype);
const char* name_of(ReduceOp op);
const char* name_of(Algorithm algorithm);
ReduceOp parse_reduce_op(const char* text, size_t length);
Algorithm parse_algorithm(const char* text, size_t length);
Policy parse_policy(const std::string& text);

}  // namespace llcoll
