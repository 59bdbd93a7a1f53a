#include "cpu/cpu_communicator.h"

#include <algorithm>
#include <cstring>
#include <mutex>

#include "check.h"
#include "cpu/cpu_wait.h"
#include "cpu/cross_check.h"
#include "cpu/isa.h"
#include "cpu/kernels.h"
#include "cpu/shm.h"
#include "exchange_plan.h"
#include "llcoll/flag.h"
#include "llcoll/group.h"
#include "llcoll/sentinel.h"
#include "select.h"

namespace llcoll {
namespace {

struct KernelTable {
  CpuKernel (*find)(const CpuKernelKey&);
  CpuExchange (*find_exchange)(Collective, const CpuKernelKey&);
};
KernelTable kernel_table() {
#if defined(__x86_64__)
  switch (best_isa()) {
    case Isa::kAvx512:
      return {avx512::find_cpu_kernel, avx512::find_cpu_exchange};
    case Isa::kAvx2:
      return {avx2::find_cpu_kernel, avx2::find_cpu_exchange};
    default:
      return {sse2::find_cpu_kernel, sse2::find_cpu_exchange};
  }
#else
  return {plain::find_cpu_kernel, plain::find_cpu_exchange};
#endif
}

constexpr size_t kPage = 4096;
// Large enough to hide the ready words, small enough that the staging of both ranks stays in a core's L2.
constexpr uint32_t kMaxFlagChunk = 64 * 1024;
constexpr size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

// One segment: control, mailbox, then the three scratches. The same on every rank.
struct SegmentPlan {
  size_t scratch_offset[kNumCpuProtocols];
  ScratchShape shape[kNumCpuProtocols];
  size_t bytes;
};

template <template <class> class ProtocolOf>
ScratchShape shape_for(size_t bytes, int num_ranks, const char* what) {
  using P = ProtocolOf<HostMemory>;
  const uint32_t regions = P::kPush ? push_regions(2, num_ranks) : pull_regions(2, num_ranks);
  constexpr uint32_t kReadyBytes = 64;  // a line each: neighbours are polled by different ranks
  size_t slots =
      std::min<size_t>(bytes / P::kBuffers / P::kSlotBytes / kStrideUnits * kStrideUnits, max_slots(1, P::kSlotBytes));
  if (!P::kPush) slots = std::min(slots, size_t{regions} * kMaxFlagChunk / P::kSlotBytes);
  check_that(slots >= size_t{regions} * kStrideUnits, "scratch_bytes is too small for ", num_ranks, " ranks: the ",
             what, " slots get ", bytes, " bytes of it and need ",
             size_t{regions} * kStrideUnits * P::kSlotBytes * P::kBuffers);
  return make_shape(static_cast<uint32_t>(slots), 1, P::kBuffers, P::kSlotBytes, kReadyBytes, num_ranks);
}

SegmentPlan plan_segment(const Options& options) {
  const int n = options.world_size;
  size_t budget = options.scratch_bytes;
  if (budget == 0) budget = n <= 2 ? 8u << 20 : 24u << 20;
  SegmentPlan plan{};
  plan.shape[kLl] = shape_for<Ll>(budget / 16, n, "LL");
  plan.shape[kSentinel] = shape_for<Sentinel>(budget / 4, n, "sentinel");
  plan.shape[kFlag] = shape_for<Flag>(budget - budget / 16 - budget / 4, n, "flag");
  size_t offset = round_up(sizeof(Control) + sizeof(Mailbox), kPage);
  for (int p = 0; p < kNumCpuProtocols; ++p) {
    plan.scratch_offset[p] = offset;
    offset = round_up(offset + plan.shape[p].bytes(), kPage);
  }
  plan.bytes = offset;
  return plan;
}

class CpuCommunicator final : public Communicator {
 public:
  CpuCommunicator(const Options& options, const AllGather& all_gather) : Communicator(options) {
    agree(all_gather, rank(), "allocating shared memory", [&] {
      plan_ = plan_segment(options_);
      own_ = Segment::create(plan_.bytes, world_size());
      clear(options_.first_epoch);
    });
    // Nobody can send before every rank has cleared: the exchange begins and ends with rounds of the bootstrap.
    if (world_size() > 1) {
      segments_ =
          exchange_segments(own_, rank(), world_size(), all_gather, options_.timeout_s, [] { return interrupted(); });
    } else {
      segments_.push_back(own_.view());
    }
    std::vector<Control*> controls;
    std::vector<Mailbox*> boxes;
    for (const Segment& segment : segments_) {
      controls.push_back(reinterpret_cast<Control*>(segment.data()));
      boxes.push_back(reinterpret_cast<Mailbox*>(segment.data() + sizeof(Control)));
    }
    for (int p = 0; p < kNumCpuProtocols; ++p) {
      scratch_[p].shape = plan_.shape[p];
      scratch_[p].rank = rank();
      for (int r = 0; r < world_size(); ++r) {
        scratch_[p].memory[r] = reinterpret_cast<char*>(segments_[r].data() + plan_.scratch_offset[p]);
      }
      find_records(scratch_[p]);
    }
    wait_ = std::make_unique<CpuWait>(options_, controls);
    if (options_.debug) cross_check_ = std::make_unique<CrossCheck>(rank(), boxes, *wait_);
  }

  Algorithm resolve(Collective kind, size_t numel, DType dtype, ReduceOp op, Algorithm requested) const override {
    return resolve_algorithm(options_, Topology{}, selection_, kind, numel, dtype, op, requested);
  }

  void run(const CollectiveCall& call) override {
    run_recorded(call, name_of(call.kind), [&] {
      if (cross_check_) cross_check_->compare(call, epoch_of(protocol_of(call.algorithm)));
      if (call.kind == Collective::kAllReduce) {
        run_kernel(call);
      } else {
        run_exchange(call);
      }
    });
  }

  void barrier(void*) override {
    const CollectiveCall call{nullptr, nullptr, 0, DType::kUInt8, ReduceOp::kSum, Algorithm::kOneShotFlag, nullptr};
    run_recorded(call, "barrier", [&] { run_kernel(call); });
  }

  void check() override {
    try {
      wait_->throw_if_failed();
    } catch (const std::exception& error) {
      note_failure(error.what());
      throw;
    }
  }
  void abort(const std::string&) override { wait_->abort_all({ErrorKind::kAborted, rank(), -1}); }
  void announce_error(const std::string& what) override {
    if (!cross_check_ || closed_) return;
    const auto lock = lock_calls();
    cross_check_->announce(what);
  }
  void close() override { closed_ = true; }

 private:
  const char* device_name() const override { return "cpu"; }
  int awaited() override { return wait_->awaited(); }

  template <class F>
  void run_recorded(const CollectiveCall& call, const char* what, F fn) {
    const auto lock = lock_calls();
    wait_->begin(what, name_of(call.algorithm));
    try {
      check_usable();
      RecordedCall record(recorder_, call, world_size(), epoch_of(protocol_of(call.algorithm)));
      fn();
      record.end(CallState::kDone);
    } catch (const std::exception& error) {
      note_failure(error.what());
      throw;
    }
  }

  // The other thread's wait may need Python's lock to look at signals, so this one must not sleep with it: asking
  // whether the call is interrupted gives it up.
  std::unique_lock<std::mutex> lock_calls() {
    std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock()) [[unlikely]] {
      check_that(!interrupted(), "interrupted before the call began");
      lock.lock();
    }
    return lock;
  }

  // Records start at `epoch`, so that tests can begin just below a wrap; sentinel slots are empty, the rest is zero.
  void clear(uint64_t epoch) {
    for (int p = 0; p < kNumCpuProtocols; ++p) {
      char* scratch = reinterpret_cast<char*>(own_.data() + plan_.scratch_offset[p]);
      const ScratchShape& shape = plan_.shape[p];
      if (p == kSentinel) std::memset(scratch, 0xFF, shape.slots_bytes());
      // Ready and hello words are compared with >=, so a zero would pass for a later epoch past 2^63.
      for (uint64_t at = shape.ready_offset(0, 0, 0, 0); at < shape.records_offset(); at += shape.ready_bytes) {
        reinterpret_cast<Packet*>(scratch + at)->flag = epoch;
      }
      auto* record = reinterpret_cast<Record*>(scratch + shape.records_offset());
      *record = Record::make(epoch, 0, static_cast<uint32_t>(epoch % shape.num_buffers));
    }
  }

  uint64_t epoch_of(Protocol p) const { return scratch_[p].records->epoch; }

  void check_usable() {
    check_that(!closed_, "the communicator of group '", options_.group_name, "' was shut down");
    wait_->throw_if_failed();
  }

  void run_kernel(const CollectiveCall& call) {
    const Protocol p = protocol_of(call.algorithm);
    const bool two = is_two_shot(call.algorithm);
    const size_t bytes = call.numel * element_bytes(call.dtype);
    const int unit_bytes = p == kLl ? 8 : HostMemory::kWidestUnit;
    const int n = world_size();
    const uint32_t regions = p == kFlag ? pull_regions(two ? 2 : 1, n) : push_regions(two ? 2 : 1, n);
    uint32_t max_chunk = plan_.shape[p].slots_per_channel / regions / kStrideUnits * kStrideUnits;
    if (p == kFlag) max_chunk = std::min(max_chunk, kMaxFlagChunk / unit_bytes);
    const Plan cut = make_plan((bytes + unit_bytes - 1) / unit_bytes, two ? n : 1, 1, max_chunk);
    const Message message =
        make_message(call.input, call.output, bytes, element_bytes(call.dtype), unit_bytes, true, true);
    const CpuKernel kernel = kernels_.find({call.algorithm, call.dtype, call.op, n});
    check_that(kernel != nullptr, "no kernel for ", name_of(call.algorithm), " of ", name_of(call.dtype));
    {
      const DefaultFloatMode mode;
      kernel(wait_.get(), &scratch_[p], &message, &cut, call.op);
    }
    if (wait_->aborted()) [[unlikely]]
      wait_->throw_if_failed();
  }

  void run_exchange(const CollectiveCall& call) {
    const Protocol p = protocol_of(call.algorithm);
    const int unit_bytes = p == kLl ? 8 : HostMemory::kWidestUnit;
    ExchangePlan plan;
    lay_out_parts(call, rank(), world_size(), unit_bytes, plan);
    if (plan.empty) return;
    const uint32_t max_chunk = p == kFlag ? kMaxStaged / unit_bytes : UINT32_MAX;
    cut_parts(call, world_size(), {unit_bytes, p != kFlag, plan_.shape[p].slots_per_channel, max_chunk}, 1, plan);
    const CpuExchange kernel = kernels_.find_exchange(call.kind, {call.algorithm, call.dtype, call.op, world_size()});
    check_that(kernel != nullptr, "no kernel for ", name_of(call.kind), " by ", name_of(call.algorithm), " of ",
               name_of(call.dtype));
    {
      const DefaultFloatMode mode;
      kernel(wait_.get(), &scratch_[p], &plan.input, &plan.output, &plan.cut, call.op);
    }
    if (wait_->aborted()) [[unlikely]]
      wait_->throw_if_failed();
  }

  static constexpr uint32_t kMaxStaged = 32 * 1024;  // bytes of a part that an epoch stages: the next overlap with it

  const Selection selection_{options_, Topology{}};
  SegmentPlan plan_{};
  Segment own_;
  std::vector<Segment> segments_;
  Scratch scratch_[kNumCpuProtocols]{};
  std::unique_ptr<CpuWait> wait_;
  std::unique_ptr<CrossCheck> cross_check_;
  const KernelTable kernels_ = kernel_table();
  std::mutex mutex_;  // calls of several threads: one scratch, one order
};

}  // namespace

std::shared_ptr<Communicator> make_cpu_communicator(const Options& options, const AllGather& all_gather) {
  return std::make_shared<CpuCommunicator>(options, all_gather);
}

}  // namespace llcoll
