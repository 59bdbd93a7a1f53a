// Names shared by host and device: data types, reduction operators, algorithms. No torch, no CUDA.
#pragma once

#include <cstddef>
#include <cstdint>

namespace llcoll {

enum class DType : int32_t {
  kFloat32,
  kFloat64,
  kFloat16,
  kBFloat16,
  kFloat8E4M3,
  kFloat8E5M2,
  kInt8,
  kUInt8,
  kInt32,
  kInt64,
  kBool,
};
inline constexpr int kNumDTypes = 11;

// kAllToAllV: with splits, of which a rank knows those of its own pairs only.
enum class Collective : int32_t { kAllReduce, kReduceScatter, kAllGather, kBroadcast, kReduce, kAllToAll, kAllToAllV };
inline constexpr int kNumCollectives = 7;

enum class ReduceOp : int32_t { kSum, kAvg, kMin, kMax, kProd };
inline constexpr int kNumReduceOps = 5;

// kOneShotSentinel and kTwoShotSentinel exist for the types that have a spare bit pattern (the floating-point ones).
enum class Algorithm : int32_t {
  kAuto,
  kOneShotLl,
  kOneShotSentinel,
  kTwoShotLl,
  kTwoShotSentinel,
  kTwoShotLl128,
  kOneShotFlag,
  kTwoShotFlag,
  kTwoShotMultimem,  // the switch adds (NVLink SHARP)
  kTorch,
  kLeaders,  // of groups that span nodes (nodes.h): one rank of each node talks to the others
  kLanes,    // each rank of a node talks to its own counterparts
};
inline constexpr int kNumAlgorithms = 12;

inline constexpr int kMaxRanks = 72;

constexpr int element_bytes(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
    case DType::kInt64:
      return 8;
    case DType::kFloat32:
    case DType::kInt32:
      return 4;
    case DType::kFloat16:
    case DType::kBFloat16:
      return 2;
    default:
      return 1;
  }
}

constexpr bool is_floating(DType dtype) { return dtype <= DType::kFloat8E5M2; }

constexpr bool is_sentinel(Algorithm a) { return a == Algorithm::kOneShotSentinel || a == Algorithm::kTwoShotSentinel; }

constexpr bool is_two_shot(Algorithm a) {
  return a == Algorithm::kTwoShotLl || a == Algorithm::kTwoShotSentinel || a == Algorithm::kTwoShotLl128 ||
         a == Algorithm::kTwoShotFlag || a == Algorithm::kTwoShotMultimem;
}

}  // namespace llcoll
