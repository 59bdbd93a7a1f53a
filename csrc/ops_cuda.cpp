// The CUDA kernels of the ops: the shared ones, compiled with USE_CUDA, on the tensor's device and its current stream.
#include <torch/csrc/stable/library.h>

#include "ops_common.h"

STABLE_TORCH_LIBRARY_IMPL(llcoll, CUDA, m)
{
  m.impl("all_reduce", &llcoll::all_reduce_kernel);
  m.impl("_all_reduce", &llcoll::all_reduce_numbered_kernel);
  m.impl("_all_reduce_grad", &llcoll::all_reduce_numbered_kernel);
  m.impl("all_reduce_", &llcoll::all_reduce_inplace_kernel);
  m.impl("all_reduce_out", &llcoll::all_reduce_out_kernel);
  m.impl("_plan_create", &llcoll::plan_create_kernel);
}
