#include "cuda/fused.cuh"
#include "llcoll/sentinel.h"

namespace llcoll {

FusedKernel find_fused_two_shot_sentinel(const FusedKey& key) {
  return find_fused(key, [&](auto type, auto ranks) {
    return find_fused_two_shot_items<Sentinel, decltype(type), decltype(ranks)::value>(key);
  });
}

}  // namespace llcoll
