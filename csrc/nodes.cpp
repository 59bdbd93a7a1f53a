#include "nodes.h"

#include <algorithm>
#include <stdexcept>

#include "check.h"
#include "nodes_communicator.h"

namespace llcoll {
namespace {

#ifdef USE_CUDA
constexpr const char* kDeviceName = "cuda";
constexpr CallState kEnds = CallState::kEnqueued;
#else
constexpr const char* kDeviceName = "cpu";
constexpr CallState kEnds = CallState::kDone;
#endif

Topology topology_of(const NodeMap& map) {
  Topology topology;
  topology.num_nodes = map.num_nodes();
  topology.num_lanes = map.num_lanes;
  return topology;
}

}  // namespace

NodesCommunicator::NodesCommunicator(const Options& options, const NodeMap& map, std::shared_ptr<Communicator> inside,
                                     std::unique_ptr<Engine> engine, const NodeScratch& scratch)
    : Communicator(options),
      map_(map),
      inside_(std::move(inside)),
      engine_(std::move(engine)),
      scratch_(scratch),
      work_(device_work()),
      topology_(topology_of(map)),
      selection_(options, topology_) {
  options_.device_index = inside_->options().device_index;
}

Algorithm NodesCommunicator::resolve(Collective kind, size_t numel, DType dtype, ReduceOp op,
                                     Algorithm requested) const {
  if (kind == Collective::kAllReduce) {
    return resolve_algorithm(options_, topology_, selection_, kind, numel, dtype, op, requested);
  }
  if (requested == Algorithm::kTorch) return requested;
  if (kind == Collective::kAllToAll || kind == Collective::kAllToAllV) {
    // Nothing adds up on the way, so the engine's own exchange of all ranks is hard to beat.
    check_that(requested == Algorithm::kAuto, "algorithm '", name_of(requested), "' cannot serve all_to_all of group '",
               options_.group_name, "', which spans ", map_.num_nodes(), " nodes: choose auto or torch");
    return Algorithm::kTorch;
  }
  const bool reduces = kind == Collective::kReduceScatter || kind == Collective::kReduce;
  const size_t whole = kind == Collective::kBroadcast || kind == Collective::kReduce ? 1 : options_.world_size;
  const Algorithm wanted = resolve_algorithm(options_, topology_, selection_, Collective::kAllReduce, numel * whole,
                                             dtype, reduces ? op : ReduceOp::kSum, requested);
  return wanted == Algorithm::kTorch ? Algorithm::kLanes : wanted;
}

std::unique_lock<std::mutex> NodesCommunicator::lock_calls() {
  std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) [[unlikely]] {
    // The other thread's engine may need Python's lock: asking whether the call is interrupted gives it up.
    check_that(!interrupted(), "interrupted before the call began");
    lock.lock();
  }
  return lock;
}

void NodesCommunicator::check_usable() {
  check_that(!closed_, "the communicator of group '", options_.group_name, "' was shut down");
  if (!failure_.empty()) throw std::runtime_error(std::string(failure_));
}

// Once a call has begun, any error leaves peers out of step: it ends the communicator, here and in this node; the
// engine's own timeout tells the other nodes.
template <class F>
void NodesCommunicator::guarded(F&& f) {
  const auto lock = lock_calls();
  check_usable();
  engine_->check_ready();
  std::string error;
  try {
    f();
    return;
  } catch (const std::exception& caught) {
    error = caught.what();
  }
  // First, so that this node's other ranks stop waiting inside and ask as well.
  inside_->abort(error);
  failure_ = engine_->explain(error);
  note_failure(failure_);
  throw std::runtime_error(std::string(failure_));
}

const char* NodesCommunicator::device_name() const { return kDeviceName; }

void NodesCommunicator::run(const CollectiveCall& call) {
  guarded([&] {
    RecordedCall record(recorder_, call, world_size(), 0);
    dispatch(call);
    record.end(kEnds);
  });
}

void NodesCommunicator::barrier(void* stream) {
  guarded([&] {
    if (map_.num_local() > 1) inside_->barrier(stream);
    if (map_.local == 0) {
      engine_->start({EngineCall::kAllGather, 0, scratch_.send_offset(0), scratch_.receive_offset(0), 8, DType::kUInt8,
                      ReduceOp::kSum, 0});
      engine_->wait(0);
    }
    if (map_.num_local() > 1) inside_->barrier(stream);
  });
}

void NodesCommunicator::check() {
  if (!failure_.empty()) throw std::runtime_error(std::string(failure_));
  inside_->check();
}

void NodesCommunicator::abort(const std::string& reason) {
  inside_->abort(reason);
  engine_->stop(reason);
}

void NodesCommunicator::close() {
  closed_ = true;
  inside_->close();
}

void NodesCommunicator::dispatch(const CollectiveCall& call) {
  switch (call.kind) {
    case Collective::kAllReduce:
      return all_reduce(reduction_of(call, call.numel));
    case Collective::kReduceScatter:
      return reduce_scatter(call);
    case Collective::kReduce:
      return reduce(call);
    case Collective::kAllGather:
      return all_gather(call);
    case Collective::kBroadcast:
      return broadcast(call);
    default:
      fail_with(name_of(call.kind), " serves the ranks of one node");
  }
}

void NodesCommunicator::inside(Collective kind, const void* input, void* output, size_t numel, DType dtype, ReduceOp op,
                               int root, const size_t* input_splits, const size_t* output_splits, void* stream) {
  size_t largest = numel;
  for (const size_t* splits : {input_splits, output_splits}) {
    if (splits != nullptr) largest = *std::max_element(splits, splits + map_.num_local());
  }
  if (largest == 0) return;
  const Algorithm algorithm = inside_->resolve(kind, largest, dtype, op, Algorithm::kAuto);
  inside_->run({input, output, numel, dtype, op, algorithm, stream, kind, root, input_splits, output_splits});
}

void NodesCommunicator::inside_broadcast(const void* input, void* output, size_t bytes, int root, void* stream) {
  if (map_.num_local() == 1) return work_.copy(output, input, bytes, stream);
  inside(Collective::kBroadcast, input, output, bytes, DType::kUInt8, ReduceOp::kSum, root, nullptr, nullptr, stream);
}

void NodesCommunicator::inside_gather(const void* input, void* output, const size_t* bytes, void* stream) {
  if (map_.num_local() == 1) return work_.copy(output, input, bytes[0], stream);
  inside(Collective::kAllGather, input, output, 0, DType::kUInt8, ReduceOp::kSum, 0, nullptr, bytes, stream);
}

std::shared_ptr<Communicator> make_nodes_communicator(const Options& options, const NodeMap& map,
                                                      std::shared_ptr<Communicator> inside,
                                                      std::unique_ptr<Engine> engine, const NodeScratch& scratch) {
  return std::make_shared<NodesCommunicator>(options, map, std::move(inside), std::move(engine), scratch);
}

}  // namespace llcoll
