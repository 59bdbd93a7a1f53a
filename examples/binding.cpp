// The examples on CPU: a rank is one process, its blocks run one after the other.
#include "binding.h"
#include "llcoll/group.h"
#include "llcoll/host_wait.h"

namespace examples {
namespace {

void init(Tensor buffer, int64_t mode, int64_t num_ranks, int64_t per_block, int64_t num_blocks) {
  llcoll::init_ll_buffer(shape_of(mode, num_ranks, per_block, num_blocks), static_cast<LlMode>(mode),
                         static_cast<char*>(buffer.data_ptr()));
}

template <LlMode mode>
void run(const Call& call) {
  llcoll::LlHostWait wait(call.args.wait);
  for (uint32_t block = 0; block < call.args.buffer.shape.num_blocks; ++block) {
    llcoll::LLBuffer<mode, llcoll::HostMemory, llcoll::Solo> buffer({&wait}, {0, 1, block}, call.args.buffer);
    run_block(buffer, call, block);
    if (buffer.failed()) throw std::runtime_error("a rank did not arrive");
  }
}

// `bias`: empty for the plain all-reduce.
void all_reduce(Tensor data, Tensor bias, Tensor buffers, int64_t rank, int64_t mode, int64_t per_block,
                int64_t num_blocks) {
  const Call call = make_call(data, bias, buffers, rank, mode, per_block, num_blocks);
  if (mode == static_cast<int64_t>(LlMode::kSentinel)) {
    run<LlMode::kSentinel>(call);
  } else {
    run<LlMode::kLl>(call);
  }
}

}  // namespace
}  // namespace examples

EXAMPLES_LIBRARY(llcoll_examples)
