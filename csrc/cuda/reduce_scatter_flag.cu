#include "cuda/exchange.cuh"

namespace llcoll {
ExchangeKernel find_reduce_scatter_flag(DType dtype, ReduceOp op) {
  return find_reduce_scatter<Flag, false>(dtype, op);
}
}  // namespace llcoll
