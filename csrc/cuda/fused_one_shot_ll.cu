#include "cuda/fused.cuh"
#include "llcoll/ll.h"

namespace llcoll {

FusedKernel find_fused_one_shot_ll(const FusedKey& key) {
  return find_fused(key, [&](auto type, auto ranks) {
    return find_fused_one_shot_items<Ll, decltype(type), decltype(ranks)::value>(key);
  });
}

}  // namespace llcoll
