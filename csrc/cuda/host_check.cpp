#include "cuda/host_check.h"

#include "cpu/cpu_wait.h"
#include "cpu/cross_check.h"
#include "cpu/shm.h"
#include "select.h"

namespace llcoll {

struct HostCheck::Impl {
  int rank = 0;
  Segment own;
  std::vector<Segment> segments;
  std::unique_ptr<CpuWait> wait;
  std::unique_ptr<CrossCheck> cross_check;
  uint64_t num_calls[kNumProtocols] = {};
};

HostCheck::HostCheck(const Options& options, const AllGather& all_gather) : impl_(std::make_unique<Impl>()) {
  impl_->rank = options.rank;
  agree(all_gather, options.rank, "allocating host memory for debug mode",
        [&] { impl_->own = Segment::create(sizeof(Control) + sizeof(Mailbox), options.world_size); });
  if (options.world_size > 1) {
    impl_->segments = exchange_segments(impl_->own, options.rank, options.world_size, all_gather, options.timeout_s,
                                        [] { return interrupted(); });
  } else {
    impl_->segments.push_back(impl_->own.view());
  }
  std::vector<Control*> controls;
  std::vector<Mailbox*> boxes;
  for (const Segment& segment : impl_->segments) {
    controls.push_back(reinterpret_cast<Control*>(segment.data()));
    boxes.push_back(reinterpret_cast<Mailbox*>(segment.data() + sizeof(Control)));
  }
  impl_->wait = std::make_unique<CpuWait>(options, controls);
  impl_->cross_check = std::make_unique<CrossCheck>(options.rank, boxes, *impl_->wait);
}

HostCheck::~HostCheck() = default;

void HostCheck::compare(const CollectiveCall& call) {
  impl_->wait->begin(name_of(call.kind), name_of(call.algorithm));
  impl_->wait->throw_if_failed();
  uint64_t& num_calls = impl_->num_calls[protocol_of(call.algorithm)];
  impl_->cross_check->compare(call, num_calls);
  num_calls += 1;  // of calls that all ranks made alike: where they differed it would differ ever after
}

void HostCheck::announce(const std::string& what) { impl_->cross_check->announce(what); }

void HostCheck::abort() { impl_->wait->abort_all({ErrorKind::kAborted, impl_->rank, -1}); }

}  // namespace llcoll
