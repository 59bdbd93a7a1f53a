// The CUDA kernels of the ops of one exchange: the shared ones, compiled with USE_CUDA.
#include <torch/csrc/stable/library.h>

#include "ops_collectives.h"

using llcoll::Collective;

STABLE_TORCH_LIBRARY_IMPL(llcoll, CUDA, m)
{
  m.impl("reduce_scatter", &llcoll::exchange_kernel<Collective::kReduceScatter>);
  m.impl("reduce_scatter_out", &llcoll::exchange_out_kernel<Collective::kReduceScatter>);
  m.impl("all_gather", &llcoll::exchange_kernel<Collective::kAllGather>);
  m.impl("all_gather_out", &llcoll::exchange_out_kernel<Collective::kAllGather>);
  m.impl("all_to_all", &llcoll::exchange_kernel<Collective::kAllToAll>);
  m.impl("all_to_all_out", &llcoll::exchange_out_kernel<Collective::kAllToAll>);
  m.impl("broadcast", &llcoll::exchange_kernel<Collective::kBroadcast>);
  m.impl("broadcast_", &llcoll::exchange_out_kernel<Collective::kBroadcast>);
  m.impl("reduce", &llcoll::exchange_kernel<Collective::kReduce>);
  m.impl("reduce_", &llcoll::exchange_out_kernel<Collective::kReduce>);
  m.impl("_exchange_plan_create", &llcoll::exchange_plan_create_kernel);
  m.impl("_exchange", &llcoll::exchange_numbered_kernel);
  m.impl("_exchange_grad", &llcoll::exchange_numbered_kernel);
}
