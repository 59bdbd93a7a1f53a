#include "capi/call.h"

#include <algorithm>

#include "check.h"

namespace llcoll::capi {
namespace {

static_assert(LLCOLL_BOOL == static_cast<int>(DType::kBool) && LLCOLL_INT8 == static_cast<int>(DType::kInt8));
static_assert(LLCOLL_PROD == static_cast<int>(ReduceOp::kProd) && LLCOLL_AVG == static_cast<int>(ReduceOp::kAvg));
static_assert(LLCOLL_ALL_TO_ALL == static_cast<int>(Collective::kAllToAll) &&
              LLCOLL_BROADCAST == static_cast<int>(Collective::kBroadcast));
static_assert(LLCOLL_TWO_SHOT_FLAG == static_cast<int>(Algorithm::kTwoShotFlag) &&
              LLCOLL_TWO_SHOT_LL128 == static_cast<int>(Algorithm::kTwoShotLl128));

constexpr size_t kMaxElements = size_t{1} << 48;

struct Sizes {
  size_t send = 0;  // elements
  size_t recv = 0;
  size_t own = 0;      // where this rank's part begins in the buffer that has all parts
  size_t largest = 0;  // part, or message
};

// Sum, and the part of `rank` begins at `own`.
size_t add_up(const size_t* counts, int num_ranks, int rank, const char* what, Sizes& sizes) {
  size_t sum = 0;
  for (int r = 0; r < num_ranks; ++r) {
    check_that(counts[r] <= kMaxElements, what, "[", r, "] is ", counts[r]);
    if (r == rank) sizes.own = sum;
    sum += counts[r];
    sizes.largest = std::max(sizes.largest, counts[r]);
  }
  return sum;
}

Sizes sizes_of(const Communicator& communicator, const llcoll_call_t& call, CollectiveCall& core) {
  const int n = communicator.world_size();
  const int rank = communicator.rank();
  const bool may_send = call.collective == LLCOLL_REDUCE_SCATTER || call.collective == LLCOLL_ALL_TO_ALL;
  const bool may_recv = call.collective == LLCOLL_ALL_GATHER || call.collective == LLCOLL_ALL_TO_ALL;
  check_that(call.send_counts == nullptr || may_send, "send_counts has no meaning for ", name_of(core.kind));
  check_that(call.recv_counts == nullptr || may_recv, "recv_counts has no meaning for ", name_of(core.kind));
  check_that(call.count <= kMaxElements, "count is ", call.count);
  Sizes sizes;
  if (call.send_counts == nullptr && call.recv_counts == nullptr) {
    const size_t all = call.count * static_cast<size_t>(n);
    sizes = {call.count, call.count, call.count * static_cast<size_t>(rank), call.count};
    if (may_send) sizes.send = all;
    if (may_recv) sizes.recv = all;
    return sizes;
  }
  core.input_splits = call.send_counts;
  core.output_splits = call.recv_counts;
  if (call.collective == LLCOLL_ALL_TO_ALL) {
    check_that(call.send_counts != nullptr && call.recv_counts != nullptr,
               "an all_to_all takes both send_counts and recv_counts, or neither");
    check_that(call.send_counts[rank] == call.recv_counts[rank], "send_counts[", rank, "] is ", call.send_counts[rank],
               ", recv_counts[", rank, "] is ", call.recv_counts[rank], ": they differ in what the rank gives itself");
    core.kind = Collective::kAllToAllV;
    sizes.recv = add_up(call.recv_counts, n, rank, "recv_counts", sizes);
    sizes.send = add_up(call.send_counts, n, rank, "send_counts", sizes);
  } else if (may_send) {
    sizes.send = add_up(call.send_counts, n, rank, "send_counts", sizes);
    sizes.recv = call.send_counts[rank];
  } else {
    sizes.recv = add_up(call.recv_counts, n, rank, "recv_counts", sizes);
    sizes.send = call.recv_counts[rank];
  }
  return sizes;
}

void check_buffers(const CollectiveCall& core, const Sizes& sizes, bool reads, bool writes) {
  const size_t element = element_bytes(core.dtype);
  check_that(!reads || sizes.send == 0 || core.input != nullptr, name_of(core.kind), ": send is NULL");
  check_that(!writes || sizes.recv == 0 || core.output != nullptr, name_of(core.kind), ": recv is NULL");
  if (!reads || !writes) return;
  const auto in = reinterpret_cast<uintptr_t>(core.input);
  const auto out = reinterpret_cast<uintptr_t>(core.output);
  if (sizes.send == 0 || sizes.recv == 0 || in >= out + sizes.recv * element || out >= in + sizes.send * element) {
    return;
  }
  bool in_place = in == out;
  if (core.kind == Collective::kReduceScatter) in_place = out == in + sizes.own * element;
  if (core.kind == Collective::kAllGather) in_place = in == out + sizes.own * element;
  if (core.kind == Collective::kAllToAllV) in_place = false;
  check_that(in_place, name_of(core.kind), ": send (", sizes.send, " elements at ", core.input, ") and recv (",
             sizes.recv, " at ", core.output, ") overlap, and not as an in-place call's");
}

// There is nobody to hand a large message to, so what serves any size does.
Algorithm without_fallback(Algorithm algorithm, int world_size) {
  if (algorithm != Algorithm::kTorch) return algorithm;
  return world_size <= 2 ? Algorithm::kOneShotFlag : Algorithm::kTwoShotFlag;
}

}  // namespace

CheckedCall check_call(const Communicator& communicator, const llcoll_call_t& call) {
  check_that(call.struct_bytes == sizeof(llcoll_call_t), "struct_bytes is ", call.struct_bytes, "; llcoll_call_t has ",
             sizeof(llcoll_call_t), " bytes");
  check_that(call.collective >= LLCOLL_ALL_REDUCE && call.collective <= LLCOLL_ALL_TO_ALL, "collective is ",
             static_cast<int>(call.collective), ", which is none");
  check_that(call.dtype >= LLCOLL_FLOAT32 && call.dtype <= LLCOLL_BOOL, "dtype is ", static_cast<int>(call.dtype),
             ", which is none");
  check_that(call.op >= LLCOLL_SUM && call.op <= LLCOLL_PROD, "op is ", static_cast<int>(call.op), ", which is none");
  check_that(call.algorithm >= LLCOLL_AUTO && call.algorithm <= LLCOLL_TWO_SHOT_FLAG, "algorithm is ",
             static_cast<int>(call.algorithm), ", which is none");
  const bool rooted = call.collective == LLCOLL_BROADCAST || call.collective == LLCOLL_REDUCE;
  check_that(!rooted || (call.root >= 0 && call.root < communicator.world_size()), "root is ", call.root,
             "; the communicator has ranks 0 to ", communicator.world_size() - 1);
  CheckedCall checked{};
  CollectiveCall& core = checked.call;
  core.input = call.send;
  core.output = call.recv;
  core.numel = call.count;
  core.dtype = static_cast<DType>(call.dtype);
  core.op = static_cast<ReduceOp>(call.op);
  core.stream = call.stream;
  core.kind = static_cast<Collective>(call.collective);
  core.root = rooted ? call.root : 0;
  const Sizes sizes = sizes_of(communicator, call, core);
  const bool is_root = rooted && call.root == communicator.rank();
  check_buffers(core, sizes, call.collective != LLCOLL_BROADCAST || is_root,
                call.collective != LLCOLL_REDUCE || is_root);
  // At the root the core reads `input` and writes `output` where that differs; elsewhere a broadcast has only output.
  const size_t numel = core.kind == Collective::kAllToAllV ? 0 : sizes.largest;
  core.algorithm = without_fallback(
      communicator.resolve(core.kind, numel, core.dtype, core.op, static_cast<Algorithm>(call.algorithm)),
      communicator.world_size());
  checked.empty = core.kind != Collective::kAllToAllV && sizes.largest == 0;
  return checked;
}

}  // namespace llcoll::capi
