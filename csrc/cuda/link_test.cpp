#include "cuda/link_test.h"

#include <cstdio>

#include "cuda/cuda_check.h"
#include "cuda/self_test.cuh"

namespace llcoll {
namespace {

constexpr uint32_t kTorn = 1;
constexpr uint32_t kMissing = 2;

// 0: every packet came whole. `multicast`: by that address, or 0.
uint32_t run_self_test(const LinkTest& test, uint64_t multicast) {
  const int world_size = test.options.world_size;
  if (world_size == 1) return 0;
  SelfTestArgs args{};
  for (int r = 0; r < world_size; ++r) {
    args.slots[r] = reinterpret_cast<Packet*>(test.memory.buffers[r] + test.test_offset);
  }
  if (multicast != 0) args.multicast = reinterpret_cast<Packet*>(multicast + test.test_offset);
  args.rank = test.options.rank;
  args.result = reinterpret_cast<uint32_t*>(args.slots[args.rank] + kMaxRanks);
  args.num_ranks = world_size;
  args.timeout_ns = multicast != 0 ? 2'000'000'000 : 20'000'000'000;
  uint32_t result = 0;
  check_cuda(launch_self_test(args, test.stream), "self test");
  check_cuda(cudaMemcpyAsync(&result, args.result, sizeof(result), cudaMemcpyDeviceToHost, test.stream),
             "cudaMemcpyAsync");
  check_cuda(cudaStreamSynchronize(test.stream), "self test");
  return result;
}

}  // namespace

bool test_multicast(const LinkTest& test, bool is_wanted, const AllGather& all_gather) {
  const int rank = test.options.rank;
  const int world_size = test.options.world_size;
  const bool has =
      is_wanted && test.memory.multicast != 0 && world_size > 1 && number_from_environment("LLCOLL_MULTICAST", 1) != 0;
  bool works = true;
  for (const std::string& one : gather(all_gather, world_size, has ? "+" : "-")) works &= one == "+";
  if (!works) return false;
  uint32_t result = 0;
  agree(all_gather, rank, "testing multicast stores", [&] { result = run_self_test(test, test.memory.multicast); });
  for (const std::string& one : gather(all_gather, world_size, concat(result))) {
    if (one == "0") continue;
    if (works && rank == 0) {
      std::fprintf(stderr, "llcoll: multicast stores %s: group '%s' does without\n",
                   one == concat(kTorn) ? "arrive torn" : "do not arrive", test.options.group_name.c_str());
    }
    works = false;
  }
  agree(all_gather, rank, "clearing the test's packets", [&] {
    check_cuda(cudaMemset(reinterpret_cast<char*>(test.memory.buffers[rank]) + test.test_offset, 0,
                          (kMaxRanks + 1) * sizeof(Packet)),
               "cudaMemset");
    check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  });
  return works;
}

bool test_stores(const LinkTest& test, const AllGather& all_gather) {
  uint32_t result = 0;
  agree(all_gather, test.options.rank, "testing stores between GPUs", [&] {
    result = run_self_test(test, 0);
    check_that(result != kMissing, "stores from a peer did not arrive within 20 s");
  });
  return result == kTorn;
}

}  // namespace llcoll
