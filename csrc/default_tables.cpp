// The built-in selection tables: what serves until `python -m llcoll.tune` has measured a machine. The one place for
// new figures: change the rows and say in `provenance` where they come from.
#include <iterator>

#include "select.h"

namespace llcoll {
namespace {

struct Entry {
  bool cuda;
  bool shares_device;
  int min_capability;  // CUDA: entries of newer GPUs come first
  int max_ranks;       // entries of fewer ranks come first
  DefaultTable table;
};

constexpr const char* kCpuWhy =
    "measured on a Xeon with AVX-512, 2 virtual cores: x86 keeps stores in order, so one flag behind a copy beats "
    "packets from 128 B on; two-shot halves what more than two ranks read, at the price of a second exchange";
constexpr const char* kLoopbackWhy =
    "measured on one H200 that all ranks share, bfloat16, CUDA graphs: each push costs the one L2";
constexpr const char* kHopperWhy =
    "not measured: one-shot to two-shot and the upper end are vLLM's custom all-reduce on sm_90 (csrc/"
    "custom_all_reduce.cuh: one stage at 2 ranks, below 512 KiB up to 4 ranks, below 256 KiB up to 8; "
    "all_reduce_utils.py: 64 MiB at 2 ranks, 32 MiB at 4; its buffer of 8 MiB at 8); LL to sentinel as in loopback";
constexpr const char* kBlackwellWhy =
    "not measured: one-shot below 1 MiB and two-shot up to 2 MiB at 4 ranks are the paper's (section VIII, GB200); "
    "the upper end elsewhere is vLLM's custom all-reduce on sm_100 (all_reduce_utils.py: 2 MiB at 2 ranks, 1 MiB at "
    "8), one-shot to two-shot at 8 ranks its 256 KiB; LL to sentinel as in loopback";

constexpr Entry kEntries[] = {
    {false,
     false,
     0,
     2,
     {"cpu, 2 ranks", kCpuWhy,
      "float32: 64 one_shot_ll, * one_shot_flag;"
      "float: 64 one_shot_ll, * one_shot_flag;"
      "integer: 64 one_shot_ll, * one_shot_flag"}},
    {false,
     false,
     0,
     4,
     {"cpu, 3-4 ranks", kCpuWhy,
      "float32: 64 one_shot_ll, 16384 one_shot_flag, * two_shot_flag;"
      "float: 64 one_shot_ll, 16384 one_shot_flag, * two_shot_flag;"
      "integer: 64 one_shot_ll, 16384 one_shot_flag, * two_shot_flag"}},
    {false,
     false,
     0,
     kMaxRanks,
     {"cpu, more ranks", kCpuWhy,
      "float32: 64 one_shot_ll, 4096 one_shot_flag, * two_shot_flag;"
      "float: 64 one_shot_ll, 4096 one_shot_flag, * two_shot_flag;"
      "integer: 64 one_shot_ll, 4096 one_shot_flag, * two_shot_flag"}},

    {true,
     true,
     0,
     2,
     {"loopback, 2 ranks", kLoopbackWhy,
      "float32: 131072 one_shot_ll, 524288 one_shot_sentinel, 1048576 two_shot_sentinel, 67108864 one_shot_flag, * "
      "torch;"
      "float: 131072 one_shot_ll, 524288 one_shot_sentinel, 1048576 two_shot_sentinel, 67108864 one_shot_flag, * torch;"
      "integer: 131072 one_shot_ll, 1048576 two_shot_ll, 67108864 one_shot_flag, * torch"}},
    {true,
     true,
     0,
     4,
     {"loopback, 3-4 ranks", kLoopbackWhy,
      "float32: 32768 one_shot_ll, 262144 one_shot_sentinel, 1048576 two_shot_sentinel, 2097152 one_shot_flag, "
      "67108864 two_shot_flag, * torch;"
      "float: 32768 one_shot_ll, 262144 one_shot_sentinel, 1048576 two_shot_sentinel, 4194304 one_shot_flag, 67108864 "
      "two_shot_flag, * torch;"
      "integer: 65536 one_shot_ll, 1048576 two_shot_ll, 67108864 two_shot_flag, * torch"}},
    {true,
     true,
     0,
     kMaxRanks,
     {"loopback, more ranks", kLoopbackWhy,
      "float32: 65536 one_shot_ll, 262144 two_shot_ll, 67108864 two_shot_flag, * torch;"
      "float: 65536 one_shot_ll, 262144 two_shot_ll, 524288 one_shot_flag, 67108864 two_shot_flag, * torch;"
      "integer: 65536 one_shot_ll, 262144 two_shot_ll, 67108864 two_shot_flag, * torch"}},

    {true,
     false,
     100,
     2,
     {"Blackwell, 2 ranks", kBlackwellWhy,
      "float32: 131072 one_shot_ll, 2097152 one_shot_sentinel, * torch;"
      "float: 131072 one_shot_ll, 2097152 one_shot_sentinel, * torch;"
      "integer: 131072 one_shot_ll, 2097152 one_shot_flag, * torch"}},
    {true,
     false,
     100,
     4,
     {"Blackwell, 3-4 ranks", kBlackwellWhy,
      "float32: 65536 one_shot_ll, 1048575 one_shot_sentinel, 2097152 two_shot_sentinel, * torch;"
      "float: 65536 one_shot_ll, 1048575 one_shot_sentinel, 2097152 two_shot_sentinel, * torch;"
      "integer: 65536 one_shot_ll, 1048575 one_shot_flag, 2097152 two_shot_flag, * torch"}},
    {true,
     false,
     100,
     kMaxRanks,
     {"Blackwell, more ranks", kBlackwellWhy,
      "float32: 16384 one_shot_ll, 262143 one_shot_sentinel, 1048576 two_shot_sentinel, * torch;"
      "float: 16384 one_shot_ll, 262143 one_shot_sentinel, 1048576 two_shot_sentinel, * torch;"
      "integer: 16384 one_shot_ll, 262143 one_shot_flag, 1048576 two_shot_flag, * torch"}},

    {true,
     false,
     0,
     2,
     {"Hopper and older, 2 ranks", kHopperWhy,
      "float32: 131072 one_shot_ll, 2097152 one_shot_sentinel, 67108864 one_shot_flag, * torch;"
      "float: 131072 one_shot_ll, 2097152 one_shot_sentinel, 67108864 one_shot_flag, * torch;"
      "integer: 131072 one_shot_ll, 67108864 one_shot_flag, * torch"}},
    {true,
     false,
     0,
     4,
     {"Hopper and older, 3-4 ranks", kHopperWhy,
      "float32: 65536 one_shot_ll, 524287 one_shot_sentinel, 2097152 two_shot_sentinel, 33554432 two_shot_flag, "
      "* torch;"
      "float: 65536 one_shot_ll, 524287 one_shot_sentinel, 2097152 two_shot_sentinel, 33554432 two_shot_flag, * torch;"
      "integer: 65536 one_shot_ll, 524287 one_shot_flag, 33554432 two_shot_flag, * torch"}},
    {true,
     false,
     0,
     kMaxRanks,
     {"Hopper and older, more ranks", kHopperWhy,
      "float32: 16384 one_shot_ll, 262143 one_shot_sentinel, 2097152 two_shot_sentinel, 8388608 two_shot_flag, "
      "* torch;"
      "float: 16384 one_shot_ll, 262143 one_shot_sentinel, 2097152 two_shot_sentinel, 8388608 two_shot_flag, * torch;"
      "integer: 16384 one_shot_ll, 262143 one_shot_flag, 8388608 two_shot_flag, * torch"}},
};

constexpr bool serves(const Entry& entry, bool cuda, bool shares_device, int capability, int world_size) {
  return entry.cuda == cuda && entry.shares_device == shares_device && entry.min_capability <= capability &&
         entry.max_ranks >= world_size;
}

constexpr bool all_served() {
  for (int world_size = 1; world_size <= kMaxRanks; ++world_size) {
    int found = 0;
    for (int kind = 0; kind < 3; ++kind) {
      for (const Entry& entry : kEntries) {
        if (!serves(entry, kind > 0, kind > 1, 0, world_size)) continue;
        ++found;
        break;
      }
    }
    if (found != 3) return false;
  }
  return true;
}
static_assert(all_served(), "a machine or a world size has no table");

constexpr const char* kNodesWhy = "measured: docs/scale.md";
constexpr DefaultTable kNodes{"several nodes", kNodesWhy,
                              "float32: 65536 leaders, * lanes;"
                              "float: 65536 leaders, * lanes;"
                              "integer: 65536 leaders, * lanes"};

}  // namespace

const DefaultTable& default_table(const Topology& topology, int world_size) {
  if (topology.num_nodes > 1) return kNodes;
  const Entry* entry = std::begin(kEntries);
  while (!serves(*entry, topology.cuda, topology.shares_device, topology.compute_capability, world_size)) ++entry;
  return entry->table;
}

}  // namespace llcoll
