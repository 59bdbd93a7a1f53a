#include "cuda/exchange.cuh"

namespace llcoll {
ExchangeKernel find_reduce_scatter_ll(DType dtype, ReduceOp op) { return find_reduce_scatter<Ll, false>(dtype, op); }
}  // namespace llcoll
