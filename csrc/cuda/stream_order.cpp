#include "cuda/stream_order.h"

#include <cstring>

#include "cuda/cuda_check.h"

namespace llcoll {

StreamOrder::~StreamOrder() {
  if (event_ != nullptr) cudaEventDestroy(event_);
}

void StreamOrder::open(bool streams_may_end) {
  streams_may_end_ = streams_may_end && number_from_environment("LLCOLL_STREAMS_MAY_END", 1) != 0;
  dependent_launch_ = number_from_environment("LLCOLL_PDL", 1) != 0;
  check_cuda(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreate");
}

// Handles are used again once a stream has been destroyed; ids never are.
StreamOrder::StreamKey StreamOrder::key_of(cudaStream_t stream) const {
  StreamKey key = reinterpret_cast<uintptr_t>(stream);
  if (streams_may_end_) check_cuda(cudaStreamGetId(stream, &key), "cudaStreamGetId");
  return key;
}

bool StreamOrder::may_have_ended(cudaStream_t stream) const {
  return streams_may_end_ && stream != nullptr && stream != cudaStreamLegacy && stream != cudaStreamPerThread;
}

bool StreamOrder::has_ended() const {
  if (!may_have_ended(last_stream_)) return false;
  StreamKey last = 0;
  const cudaError_t error = cudaStreamGetId(last_stream_, &last);
  if (error != cudaSuccess) cudaGetLastError();
  return error != cudaSuccess || last != last_key_;
}

void StreamOrder::enter(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long id = 0;
  check_cuda(cudaStreamGetCaptureInfo(stream, &status, &id), "cudaStreamGetCaptureInfo");
  stream_ = stream;
  if (status == cudaStreamCaptureStatusActive) return enter_capture(stream, id);
  capture_ = nullptr;
  const StreamKey key = key_of(stream);
  if (launched_ && key != last_key_) {
    // Programs that call on one stream alone never pay for an event. At the first change that stream may be gone.
    if (!is_recorded_ && has_ended()) {
      check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    } else {
      if (!is_recorded_) check_cuda(cudaEventRecord(event_, last_stream_), "cudaEventRecord");
      check_cuda(cudaStreamWaitEvent(stream, event_), "cudaStreamWaitEvent");
    }
    moves_ = true;
  }
  last_stream_ = stream;
  last_key_ = key;
  is_recorded_ = false;
  launched_ = true;
}

void StreamOrder::enter_capture(cudaStream_t stream, unsigned long long id) {
  Capture* known = nullptr;
  for (Capture& capture : captures_) {
    if (capture.id == id) known = &capture;
  }
  // The ids of overlapped launches are those of one capture: one that is taken up again starts without.
  const bool is_resumed = known != nullptr && last_capture_ != id;
  if (last_capture_ != id) std::memset(last_launch_, 0, sizeof(last_launch_));
  if (known == nullptr) {
    known = &captures_[next_capture_];
    next_capture_ = (next_capture_ + 1) % kNumCaptures;
    *known = {id, 0, {}};
  }
  // A stream's id cannot be asked for while it captures; nor can the stream end before the capture does.
  const auto key = reinterpret_cast<StreamKey>(stream);
  const bool is_moved = known->stream != key && !known->nodes.empty();
  if (is_moved) {
    cudaGraphNode_t* nodes = known->nodes.data();
    const size_t num_nodes = known->nodes.size();
    const unsigned add = cudaStreamAddCaptureDependencies;
#if CUDART_VERSION >= 13000
    const cudaError_t error = cudaStreamUpdateCaptureDependencies(stream, nodes, nullptr, num_nodes, add);
#else
    const cudaError_t error = cudaStreamUpdateCaptureDependencies(stream, nodes, num_nodes, add);
#endif
    check_cuda(error, "cudaStreamUpdateCaptureDependencies");
  }
  known->stream = key;
  capture_ = known;
  last_capture_ = id;
  alone_ = is_resumed || is_moved;
}

bool StreamOrder::is_idle() const {
  // Who destroyed a stream has waited for it.
  if (!launched_ || (!is_recorded_ && has_ended())) return true;
  const cudaError_t status = is_recorded_ ? cudaEventQuery(event_) : cudaStreamQuery(last_stream_);
  if (status != cudaSuccess && status != cudaErrorNotReady) cudaGetLastError();
  return status == cudaSuccess;
}

// Captured launches let their dependents start early and know whom they may overlap: the launch before them in the
// same capture, channel by channel. The first of a graph overlaps nobody, since a graph starts behind all earlier
// work. Eager ones do neither: the host is slower than what that gains, and replays in between are not seen here.
void StreamOrder::place(Protocol protocol, uint32_t num_channels, LaunchOrder& order) {
  next_launch_ = next_launch_ == Record::kLaunchMask ? 1 : next_launch_ + 1;
  order.launch = next_launch_;
  order.early_trigger = is_capturing() && dependent_launch_;
  uint32_t* last = last_launch_[protocol];
  for (uint32_t c = 0; c < num_channels; ++c) {
    order.last_launch[c] = is_dependent() ? last[c] : 0;
    if (is_capturing()) last[c] = next_launch_;
  }
}

void StreamOrder::launch(const void* kernel, uint32_t num_channels, uint32_t num_threads, void* args,
                         const char* what) {
  cudaLaunchAttribute dependent{};
  dependent.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  dependent.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(num_channels);
  config.blockDim = dim3(num_threads);
  config.stream = stream_;
  config.attrs = &dependent;
  config.numAttrs = is_dependent() ? 1 : 0;
  void* params[] = {args};
  check_cuda(cudaLaunchKernelExC(&config, kernel, params), what);
  leave(stream_);
}

void StreamOrder::leave(cudaStream_t stream) {
  check_that(stream == stream_, "a stream is left that was not entered last");
  if (!is_capturing()) {
    is_recorded_ = moves_ && may_have_ended(stream);
    if (is_recorded_) check_cuda(cudaEventRecord(event_, stream), "cudaEventRecord");
    return;
  }
  // What comes next on a capturing stream depends on these: behind a launch that launch's node alone.
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaGraphNode_t* nodes = nullptr;
  size_t num_nodes = 0;
#if CUDART_VERSION >= 13000
  const cudaGraphEdgeData* edges = nullptr;
  check_cuda(cudaStreamGetCaptureInfo(stream, &status, nullptr, nullptr, &nodes, &edges, &num_nodes),
             "cudaStreamGetCaptureInfo");
#else
  check_cuda(cudaStreamGetCaptureInfo_v2(stream, &status, nullptr, nullptr, &nodes, &num_nodes),
             "cudaStreamGetCaptureInfo");
#endif
  capture_->nodes.assign(nodes, nodes + num_nodes);
}

}  // namespace llcoll
