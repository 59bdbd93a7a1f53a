#include "cuda/cuda_communicator.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "check.h"
#include "cuda/cuda_check.h"
#include "cuda/device_scope.h"
#include "cuda/exchange_launch.h"
#include "cuda/fused_plan.h"
#include "cuda/host_check.h"
#include "cuda/launch_plan.h"
#include "cuda/line_plan.h"
#include "cuda/link_test.h"
#include "cuda/monitor.h"
#include "cuda/probe.cuh"
#include "cuda/self_test.cuh"
#include "cuda/stream_order.h"
#include "select.h"

namespace llcoll {
namespace {

class CudaCommunicator final : public Communicator {
 public:
  CudaCommunicator(const Options& options, const CudaMemory& memory, const AllGather& all_gather)
      : Communicator(options), memory_(memory) {
    const CudaDeviceScope scope(memory_.device);
    topology_.cuda = true;
    agree_on_grid(all_gather);
    agree(all_gather, rank(), "preparing GPU scratch", [&] { prepare(); });
    self_test(all_gather);
    agree(all_gather, rank(), "preparing the watchdog", [&] { make_monitor(); });
    if (options_.debug) start_host_check(all_gather);
    selection_ = Selection(options_, topology_);
    if (world_size() > 1) monitor_->start();
  }

  ~CudaCommunicator() override {
    monitor_.reset();
    if (record_ != nullptr) cudaFreeHost(record_);
    for (cudaEvent_t event : timing_) {
      if (event != nullptr) cudaEventDestroy(event);
    }
    if (side_stream_ != nullptr) cudaStreamDestroy(side_stream_);
  }

  Algorithm resolve(Collective kind, size_t numel, DType dtype, ReduceOp op, Algorithm requested) const override {
    return resolve_algorithm(options_, topology_, selection_, kind, numel, dtype, op, requested);
  }

  void run(const CollectiveCall& call) override {
    const std::lock_guard lock(mutex_);
    run_recorded(call, [&] {
      if (call.kind != Collective::kAllReduce) return launch_exchange(call);
      order_.enter(static_cast<cudaStream_t>(call.stream));
      launch(call);
    });
  }

  bool try_run_fused(const CollectiveCall& call, const NormCall& norm) override {
    const std::lock_guard lock(mutex_);
    const FusedLaunch plan = plan_fused_launch(call, norm, world_size(), layout_, max_channels_);
    if (plan.kernel == nullptr) return false;
    run_recorded(call, [&] {
      order_.enter(static_cast<cudaStream_t>(call.stream));
      FusedArgs args{args_[plan.protocol], plan.norm};
      args.base.message = plan.message;
      args.base.plan = plan.cut;
      args.base.wait.algorithm = static_cast<int32_t>(call.algorithm);
      order_.place(plan.protocol, plan.num_channels, args.base.order);
      order_.launch(plan.kernel, plan.num_channels, plan.num_threads, &args, name_of(call.kind));
    });
    return true;
  }

  void barrier(void* stream) override {
    run({nullptr, nullptr, 0, DType::kUInt8, ReduceOp::kSum, Algorithm::kOneShotFlag, stream});
  }

  void check() override {
    const volatile FailureRecord& record = *record_;
    if (record.valid == 0) return;
    const auto algorithm = name_of(static_cast<Algorithm>(record.algorithm & ((1 << kKindShift) - 1)));
    if (record.culprit >= static_cast<int>(kUserAbort) - 1) {
      fail(ErrorKind::kAborted, concat("the group's collectives were ended; this is rank ", rank()));
    }
    const std::string text = concat("rank ", record.culprit, " did not arrive: rank ", rank(), " waited in ",
                                    name_of(static_cast<Collective>(record.algorithm >> kKindShift)), " (", algorithm,
                                    ", epoch ", record.epoch, ", awaited rank ", record.source, ")");
    note_failure(concat("CollectiveTimeout: ", text));
    fail(ErrorKind::kTimeout, text);
  }

  // A peer whose memory cannot be written must not keep the others waiting: all are tried, then the error comes out.
  void abort(const std::string&) override {
    if (host_check_) host_check_->abort();
    const CudaDeviceScope scope(memory_.device);
    cudaError_t error = cudaSuccess;
    for (int r = 0; r < world_size(); ++r) {
      const cudaError_t result =
          cudaMemcpyAsync(&control(r)->aborted, &kUserAbort, sizeof(uint32_t), cudaMemcpyHostToDevice, side_stream_);
      if (result != cudaSuccess) error = result;
    }
    const cudaError_t result = cudaStreamSynchronize(side_stream_);
    note_abort();
    check_cuda(error != cudaSuccess ? error : result, "telling the peers of an abort");
  }
  void enter_stream(void* stream) override {
    const std::lock_guard lock(mutex_);
    order_.enter(static_cast<cudaStream_t>(stream));
  }
  void leave_stream(void* stream) override {
    const std::lock_guard lock(mutex_);
    order_.leave(static_cast<cudaStream_t>(stream));
  }
  // A call that another thread is in the middle of is not over; nor may an abort wait for it here.
  bool is_idle() override {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    return lock.owns_lock() && order_.is_idle();
  }
  void announce_error(const std::string& what) override {
    if (!host_check_ || closed_) return;
    const std::lock_guard lock(mutex_);
    host_check_->announce(what);
  }
  void close() override {
    closed_ = true;
    if (monitor_) monitor_->stop();
  }

  double time_in_kernel(void* buffer, size_t bytes, Algorithm algorithm, uint32_t iterations) {
    const std::lock_guard lock(mutex_);
    check_usable();
    const Protocol protocol = protocol_of(algorithm);
    const uint32_t unit = protocol == kLl ? 8 : 16;
    check_that(algorithm == Algorithm::kOneShotLl || algorithm == Algorithm::kOneShotSentinel,
               "in-kernel repetition takes one_shot_ll or one_shot_sentinel, not ", name_of(algorithm));
    check_that(protocol != kLl || topology_.wide_packets, "in-kernel repetition has no 8-byte packets");
    check_that(iterations > 0 && bytes > 0 && bytes % unit == 0 && reinterpret_cast<uintptr_t>(buffer) % unit == 0 &&
                   bytes / unit <= kMaxThreads,
               "in-kernel repetition takes 1 to ", kMaxThreads, " aligned units of ", unit, " bytes, got ", bytes,
               " bytes, ", iterations, " times");
    const CudaDeviceScope scope(memory_.device);
    KernelArgs args = args_[protocol];
    args.message = make_message(buffer, buffer, bytes, 2, static_cast<int>(unit), true, true);
    args.op = ReduceOp::kSum;
    args.wait.algorithm = static_cast<int32_t>(algorithm);
    order_.enter(side_stream_);
    check_cuda(cudaEventRecord(begin_timing(), side_stream_), "cudaEventRecord");
    check_that(launch_in_kernel(protocol, args, static_cast<uint32_t>(bytes / unit), iterations, side_stream_),
               "in-kernel repetition is built for 2, 4 and 8 ranks, not ", world_size());
    check_cuda(cudaEventRecord(timing_[1], side_stream_), "cudaEventRecord");
    check_cuda(cudaStreamSynchronize(side_stream_), "in-kernel repetition");
    check();
    float ms = 0;
    check_cuda(cudaEventElapsedTime(&ms, timing_[0], timing_[1]), "cudaEventElapsedTime");
    return 1e3 * ms / iterations;
  }

  double ping_pong_ns(int peer, uint32_t trips) {
    const std::lock_guard lock(mutex_);
    check_usable();
    check_that(peer >= 0 && peer < world_size() && peer != rank() && trips > 0, "ping-pong of rank ", rank(), " with ",
               peer, ", ", trips, " trips");
    const CudaDeviceScope scope(memory_.device);
    auto slots = [&](int r) { return reinterpret_cast<Packet*>(memory_.buffers[r] + layout_.test_offset); };
    auto* ns = reinterpret_cast<uint64_t*>(slots(rank()) + kMaxRanks);
    uint64_t taken = 0;
    PingPongArgs args{};
    args.own_slot = slots(rank()) + peer;
    args.peer_slot = slots(peer) + rank();
    args.base = last_ping_[peer];
    args.trips = trips;
    args.starts = rank() < peer;
    args.timeout_ns = 5'000'000'000;
    args.ns = ns;
    last_ping_[peer] += trips;
    check_cuda(launch_ping_pong(args, side_stream_), "ping-pong");
    check_cuda(cudaMemcpyAsync(&taken, ns, sizeof(taken), cudaMemcpyDeviceToHost, side_stream_), "cudaMemcpyAsync");
    check_cuda(cudaStreamSynchronize(side_stream_), "ping-pong");
    check_that(taken != 0, "rank ", peer, " did not answer a ping-pong within 5 s");
    return static_cast<double>(taken) / (2.0 * trips);
  }

 private:
  const char* device_name() const override { return "cuda"; }

  int awaited() override { return monitor_ ? monitor_->awaited() : -1; }
  std::vector<CallRecord> recorded_calls() override {
    std::vector<CallRecord> calls = recorder_.snapshot();
    if (monitor_) monitor_->complete(calls);
    return calls;
  }

  // Behind the last lay_out(), which places the records.
  void make_monitor() {
    const Record* records[kNumProtocols];
    for (int p = 0; p < kNumProtocols; ++p) records[p] = args_[p].scratch.records;
    monitor_ = std::make_unique<Monitor>(
        rank(), memory_.device, control(rank()), records, [this] { check(); }, [this] { note_abort(); });
  }

  template <class F>
  void run_recorded(const CollectiveCall& call, F fn) {
    check_usable();
    RecordedCall record(recorder_, call, world_size(), 0);
    if (host_check_) compare(call);
    fn();
    record.set_position(order_.last_id());
    record.end(order_.is_capturing() ? CallState::kCaptured : CallState::kEnqueued);
  }

  void note_abort() {
    if (record_->valid != 0) return;
    record_->culprit = static_cast<int>(kUserAbort) - 1;
    record_->valid = 1;
  }

  void compare(const CollectiveCall& call) {
    try {
      host_check_->compare(call);
    } catch (const std::exception& error) {
      note_failure(error.what());
      throw;
    }
  }

  cudaEvent_t begin_timing() {
    for (cudaEvent_t& event : timing_) {
      if (event == nullptr) check_cuda(cudaEventCreate(&event), "cudaEventCreate");
    }
    return timing_[0];
  }

  DeviceControl* control(int r) const { return reinterpret_cast<DeviceControl*>(memory_.buffers[r]); }

  void prepare() {
    check_that(int(memory_.buffers.size()) == world_size(), "got ", memory_.buffers.size(), " buffers for ",
               world_size(), " ranks");
    layout_ = plan_cuda_buffer(options_, max_channels_);
    check_that(memory_.bytes >= layout_.bytes + options_.pool_bytes, "the symmetric buffer has ", memory_.bytes,
               " bytes, needed ", layout_.bytes + options_.pool_bytes);
    pool_ = memory_.buffers[rank()] + memory_.bytes - options_.pool_bytes;
    check_cuda(cudaHostAlloc(reinterpret_cast<void**>(&record_), sizeof(FailureRecord), cudaHostAllocMapped),
               "cudaHostAlloc");
    *record_ = FailureRecord{};
    order_.open(options_.streams_may_end);
    check_cuda(cudaStreamCreateWithFlags(&side_stream_, cudaStreamNonBlocking), "cudaStreamCreate");
    lay_out();
  }

  // Clears this rank's buffer and starts its records. Nobody may send before a round of the bootstrap behind it.
  void lay_out() {
    layout_ = plan_cuda_buffer(options_, max_channels_, topology_.wide_packets);
    layout_.multicast = topology_.has_multicast;
    char* own = reinterpret_cast<char*>(memory_.buffers[rank()]);
    check_cuda(cudaMemset(own, 0, layout_.bytes), "cudaMemset");
    for (int p = 0; p < kNumProtocols; ++p) {
      const ScratchShape& shape = layout_.shape[p];
      char* scratch = own + layout_.offset[p];
      if (p == kSentinel) check_cuda(cudaMemset(scratch, 0xFF, shape.slots_bytes()), "cudaMemset");
      if (p == kLl128 && shape.slots_per_channel != 0) {
        const uint64_t first = uint64_t{line_slots_of(shape)} * shape.slot_bytes;
        const uint64_t part = shape.slot_offset(0, 1);
        check_cuda(cudaMemset2D(scratch + first, part, 0xFF, part - first, shape.num_buffers * shape.num_channels),
                   "cudaMemset2D");
        args_[p].line_slots = line_slots_of(shape);
      }
      const uint64_t epoch = options_.first_epoch;
      const std::vector<Record> records(shape.num_channels,
                                        Record::make(epoch, 0, static_cast<uint32_t>(epoch % shape.num_buffers)));
      check_cuda(cudaMemcpy(scratch + shape.records_offset(), records.data(), records.size() * sizeof(Record),
                            cudaMemcpyHostToDevice),
                 "cudaMemcpy");
      // "A peer's epoch is at least mine" is a signed difference: ready and hello words start where the epochs do.
      const std::vector<Packet> ready((shape.records_offset() - shape.slots_bytes()) / sizeof(Packet), {0, epoch});
      check_cuda(cudaMemcpy(scratch + shape.slots_bytes(), ready.data(), ready.size() * sizeof(Packet),
                            cudaMemcpyHostToDevice),
                 "cudaMemcpy");
      KernelArgs& args = args_[p];
      args.scratch.shape = shape;
      args.scratch.rank = rank();
      args.wait.record = record_;
      args.wait.timeout_ns = static_cast<uint64_t>(options_.timeout_s * 1e9);
      args.wait.rank = rank();
      args.wait.num_ranks = world_size();
      args.wait.own_abort = &control(rank())->aborted;
      for (int r = 0; r < world_size(); ++r) {
        args.scratch.memory[r] = reinterpret_cast<char*>(memory_.buffers[r]) + layout_.offset[p];
        args.wait.controls[r] = control(r);
      }
      find_records(args.scratch);
      if (memory_.multicast != 0) {
        args.scratch.multicast = reinterpret_cast<char*>(memory_.multicast) + layout_.offset[p];
      }
      args.symmetric.pool_offset = memory_.bytes - options_.pool_bytes - layout_.offset[p];
    }
    check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }

  // The most CTAs that are resident together however the ranks share devices: the smallest over all ranks. One CTA per
  // SM over all ranks, though two would fit by registers and threads: with 248 of 264 places used, 4 ranks hung.
  void agree_on_grid(const AllGather& all_gather) {
    cudaDeviceProp properties{};
    std::string own;
    agree(all_gather, rank(), "looking at the GPU", [&] {
      check_cuda(cudaGetDeviceProperties(&properties, memory_.device), "cudaGetDeviceProperties");
      own.assign(properties.uuid.bytes, sizeof(properties.uuid.bytes));
      own += concat(properties.multiProcessorCount, " ", 10 * properties.major + properties.minor);
    });
    const std::vector<std::string> all = gather(all_gather, world_size(), own);
    for (const std::string& one : all) lines_stay_whole_ &= lines_stay_whole(memory_.device, one.data());
    max_channels_ = std::max(1u, number_from_environment("LLCOLL_MAX_CHANNELS", kMaxChannels));
    for (const std::string& one : all) {
      const int sharing = static_cast<int>(std::count_if(
          all.begin(), all.end(), [&](const std::string& other) { return other.compare(0, 16, one, 0, 16) == 0; }));
      const int sms = std::atoi(one.c_str() + 16);
      max_channels_ = std::min<uint32_t>(max_channels_, std::max(1, sms / sharing));
      topology_.shares_device |= sharing > 1;
      const int capability = std::atoi(one.c_str() + one.find(' ', 16));
      if (topology_.compute_capability == 0 || capability < topology_.compute_capability)
        topology_.compute_capability = capability;
    }
  }

  // Ends with a round of the bootstrap, behind which every rank may send.
  void self_test(const AllGather& all_gather) {
    const LinkTest test{memory_, options_, layout_.test_offset, side_stream_};
    layout_.multicast = topology_.has_multicast = test_multicast(test, topology_.compute_capability >= 90, all_gather);
    const bool is_torn = test_stores(test, all_gather);
    topology_.line_atomics = layout_.shape[kLl128].slots_per_channel != 0 && topology_.compute_capability >= 90;
    const char* wanted = std::getenv("LLCOLL_PACKET_BYTES");
    const bool is_told = wanted != nullptr && std::strcmp(wanted, "8") == 0;
    const std::string own = concat(is_torn ? "torn" : (is_told ? "told" : "whole"), lines_stay_whole_ ? "+" : "-");
    const std::vector<std::string> all = gather(all_gather, world_size(), own);
    for (int r = 0; r < world_size(); ++r) {
      if (all[r].back() != '+') topology_.line_atomics = false;
      if (all[r].compare(0, 5, "whole") == 0) continue;
      if (topology_.wide_packets && rank() == 0) {
        const std::string reason = all[r].compare(0, 4, "told") == 0
                                       ? concat("LLCOLL_PACKET_BYTES=8 on rank ", r)
                                       : concat("16-byte packets arrived torn at rank ", r);
        std::fprintf(stderr, "llcoll: %s: LL uses 8-byte packets in group '%s', and the pool is staged\n",
                     reason.c_str(), options_.group_name.c_str());
      }
      topology_.wide_packets = false;
    }
    if (!topology_.wide_packets) agree(all_gather, rank(), "preparing 8-byte packets", [&] { lay_out(); });
  }

  void start_host_check(const AllGather& all_gather) {
    try {
      host_check_ = std::make_unique<HostCheck>(options_, all_gather);
    } catch (const std::exception& error) {  // alike on every rank: ranks of several hosts share no host memory
      if (rank() == 0) std::fprintf(stderr, "llcoll: LLCOLL_DEBUG=1 compares no calls: %s\n", error.what());
    }
  }

  void check_usable() {
    check_that(!closed_, "the communicator of group '", options_.group_name, "' was shut down");
    if (record_->valid != 0) [[unlikely]]
      check();
  }

  // Where peers find a tensor of this rank; 0: not in the pool, or off the alignment of whole units, or the link would
  // tear the word that says so.
  uint32_t place_of(const void* tensor, uint64_t num_bytes) const {
    const uint64_t offset = reinterpret_cast<uint64_t>(tensor) - pool_;
    const bool inside = offset < options_.pool_bytes && num_bytes <= options_.pool_bytes - offset;
    return inside && offset % kPlaceBytes == 0 && topology_.wide_packets
               ? static_cast<uint32_t>(offset / kPlaceBytes + 1)
               : 0;
  }

  void launch(const CollectiveCall& call) {
    const LaunchPlan plan = plan_launch(call, world_size(), layout_, max_channels_);
    check_that(plan.kernel != nullptr, "no kernel for ", name_of(call.algorithm), " of ", name_of(call.dtype));
    KernelArgs& args = args_[plan.protocol];
    args.message = plan.message;
    args.plan = plan.cut;
    args.op = call.op;
    if (plan.protocol == kFlag) {
      args.symmetric.input = place_of(call.input, plan.message.num_bytes);
      args.symmetric.output = place_of(call.output, plan.message.num_bytes);
    }
    args.wait.algorithm = static_cast<int32_t>(call.algorithm);
    order_.place(plan.protocol, plan.num_channels, args.order);
    order_.launch(plan.kernel, plan.num_channels, plan.num_threads, &args, name_of(call.kind));
  }

  void launch_exchange(const CollectiveCall& call) {
    ExchangeLaunch plan;
    plan_exchange_launch(call, rank(), world_size(), layout_, max_channels_, plan);
    if (plan.empty) return;
    check_that(plan.kernel != nullptr, "no kernel for ", name_of(call.kind), " by ", name_of(call.algorithm), " of ",
               name_of(call.dtype));
    order_.enter(static_cast<cudaStream_t>(call.stream));
    plan.args.scratch = args_[plan.protocol].scratch;
    plan.args.wait = args_[plan.protocol].wait;
    plan.args.wait.algorithm = static_cast<int32_t>(call.algorithm) | static_cast<int32_t>(call.kind) << kKindShift;
    order_.place(plan.protocol, plan.num_channels, plan.args.order);
    order_.launch(plan.kernel, plan.num_channels, plan.num_threads, &plan.args, name_of(call.kind));
  }

  // A failure record's `algorithm` holds the collective too.
  static constexpr int kKindShift = 8;

  CudaMemory memory_;
  CudaLayout layout_{};
  Topology topology_;
  Selection selection_;
  std::unique_ptr<HostCheck> host_check_;  // debug mode
  KernelArgs args_[kNumProtocols]{};
  FailureRecord* record_ = nullptr;
  uint64_t pool_ = 0;  // address of this rank's
  uint32_t max_channels_ = 1;
  bool lines_stay_whole_ = true;  // between this rank's GPU and every other rank's
  StreamOrder order_;
  cudaStream_t side_stream_ = nullptr;
  cudaEvent_t timing_[2]{};
  // The last flag of each pair's ping-pongs: above the self-test's, whose slots they use.
  std::vector<uint64_t> last_ping_ = std::vector<uint64_t>(kMaxRanks, 2 * kNumSelfTestPackets);
  std::mutex mutex_;
  std::unique_ptr<Monitor> monitor_;
};

}  // namespace

// The pool is the end of the buffer.
uint64_t cuda_buffer_bytes(const Options& options) { return max_cuda_buffer_bytes(options) + options.pool_bytes; }

std::shared_ptr<Communicator> make_cuda_communicator(const Options& options, const CudaMemory& memory,
                                                     const AllGather& all_gather) {
  return std::make_shared<CudaCommunicator>(options, memory, all_gather);
}

double time_in_kernel(Communicator& communicator, void* buffer, size_t bytes, Algorithm algorithm,
                      uint32_t iterations) {
  return static_cast<CudaCommunicator&>(communicator).time_in_kernel(buffer, bytes, algorithm, iterations);
}

double ping_pong_ns(Communicator& communicator, int peer, uint32_t trips) {
  return static_cast<CudaCommunicator&>(communicator).ping_pong_ns(peer, trips);
}

}  // namespace llcoll
