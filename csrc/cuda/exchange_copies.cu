#include "cuda/exchange.cuh"

namespace llcoll {

ExchangeKernel find_all_gather(Algorithm algorithm) {
  if (algorithm == Algorithm::kOneShotLl) return copy_kernel<Ll, false>;
  return algorithm == Algorithm::kOneShotFlag ? copy_kernel<Flag, false> : nullptr;
}

ExchangeKernel find_all_to_all(Algorithm algorithm) {
  if (algorithm == Algorithm::kOneShotLl) return copy_kernel<Ll, true>;
  return algorithm == Algorithm::kOneShotFlag ? copy_kernel<Flag, true> : nullptr;
}

}  // namespace llcoll
