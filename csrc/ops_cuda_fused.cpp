// The CUDA kernels of the fused ops: the shared ones, compiled with USE_CUDA.
#include <torch/csrc/stable/library.h>

#include "ops_fused.h"

STABLE_TORCH_LIBRARY_IMPL(llcoll, CUDA, m)
{
  m.impl("rms_norm", &llcoll::rms_norm_kernel);
  m.impl("add_rms_norm", &llcoll::add_rms_norm_kernel);
  m.impl("all_reduce_rms_norm", &llcoll::all_reduce_rms_norm_kernel);
  m.impl("all_reduce_rms_norm_fp8", &llcoll::all_reduce_rms_norm_fp8_kernel);
  m.impl("all_reduce_rms_norm_dynamic_fp8", &llcoll::all_reduce_rms_norm_dynamic_fp8_kernel);
}
