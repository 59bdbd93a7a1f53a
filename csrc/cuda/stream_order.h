// One scratch, one order: the launches of a communicator run one after the other, whatever streams they are on.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <vector>

#include "communicator.h"
#include "cuda/kernel_args.h"
#include "select.h"

namespace llcoll {

// Not thread-safe: the communicator's lock is held. Its device is current.
class StreamOrder {
 public:
  StreamOrder() = default;
  ~StreamOrder();
  StreamOrder(const StreamOrder&) = delete;
  StreamOrder& operator=(const StreamOrder&) = delete;

  // `streams_may_end`: streams may be destroyed, and others come to their handles, while the last call is at work.
  void open(bool streams_may_end);

  // Before anything of a call is put on `stream`: what follows runs behind the last launch. Outside captures by an
  // event; inside one by an edge from that launch's node, so that a capture may use the group on several of its
  // streams.
  void enter(cudaStream_t stream);

  // What the caller has put on `stream`, which was entered last, counts as the last launch.
  void leave(cudaStream_t stream);

  // Of the stream that was entered last.
  bool is_capturing() const { return capture_ != nullptr; }

  // The last launch outside captures has ended. Replays of graphs are not seen.
  bool is_idle() const;

  // Gives the next launch its id, and tells it of the launch before it.
  void place(Protocol protocol, uint32_t num_channels, LaunchOrder& order);
  uint32_t last_id() const { return next_launch_; }

  // `what` names the call in errors.
  template <class Args>
  void launch(void (*kernel)(Args), uint32_t num_channels, uint32_t num_threads, Args* args, const char* what) {
    launch(reinterpret_cast<const void*>(kernel), num_channels, num_threads, static_cast<void*>(args), what);
  }

 private:
  using StreamKey = unsigned long long;

  // A capture in which this group was used. Some are kept, since several may be under way at a time.
  struct Capture {
    unsigned long long id = 0;  // 0: unused
    StreamKey stream = 0;
    std::vector<cudaGraphNode_t> nodes;  // the last launch, or what stands for it
  };
  static constexpr int kNumCaptures = 8;

  StreamKey key_of(cudaStream_t stream) const;
  bool may_have_ended(cudaStream_t stream) const;
  bool has_ended() const;  // the stream of the last launch
  void enter_capture(cudaStream_t stream, unsigned long long id);
  void launch(const void* kernel, uint32_t num_channels, uint32_t num_threads, void* args, const char* what);
  bool is_dependent() const { return is_capturing() && dependent_launch_ && !alone_; }

  cudaEvent_t event_ = nullptr;
  cudaStream_t stream_ = nullptr;
  cudaStream_t last_stream_ = nullptr;  // of the last launch outside captures
  StreamKey last_key_ = 0;
  bool launched_ = false;
  bool streams_may_end_ = false;
  bool is_recorded_ = false;  // the event stands behind that launch
  bool moves_ = false;        // there were several streams: the event is recorded behind every launch from then on
  Capture captures_[kNumCaptures];
  int next_capture_ = 0;
  Capture* capture_ = nullptr;  // of stream_; nullptr: it is not capturing
  unsigned long long last_capture_ = 0;
  bool alone_ = false;  // the next launch starts at the end of those before it, not earlier
  bool dependent_launch_ = true;
  uint32_t next_launch_ = 0;
  uint32_t last_launch_[kNumProtocols][kMaxChannels]{};
};

}  // namespace llcoll
