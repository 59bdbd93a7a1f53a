#include "cuda/exchange.cuh"

namespace llcoll {
ExchangeKernel find_reduce_scatter_sentinel(DType dtype, ReduceOp op) {
  return find_reduce_scatter<Sentinel, true>(dtype, op);
}
}  // namespace llcoll
