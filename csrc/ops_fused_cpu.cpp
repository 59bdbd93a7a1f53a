// Schemas of the fused ops, and their CPU kernels.
#include <torch/csrc/stable/library.h>

#include "ops_fused.h"

// torch 2.11 does not raise where a definition fails: a test checks that each of these exists.
STABLE_TORCH_LIBRARY_FRAGMENT(llcoll, m) {
  m.def("rms_norm(Tensor input, Tensor weight, float eps, *, float weight_bias=0.0) -> Tensor");
  m.def(
      "add_rms_norm(Tensor input, Tensor residual, Tensor weight, float eps, *, float weight_bias=0.0) -> "
      "(Tensor, Tensor)");
  m.def(
      "all_reduce_rms_norm(Tensor input, Tensor residual, Tensor weight, float eps, str group_name=\"\", *, "
      "float weight_bias=0.0, str algorithm=\"auto\") -> (Tensor, Tensor)");
  m.def(
      "all_reduce_rms_norm_fp8(Tensor input, Tensor residual, Tensor weight, Tensor scale, float eps, "
      "str group_name=\"\", *, float weight_bias=0.0, str algorithm=\"auto\") -> (Tensor, Tensor)");
  m.def(
      "all_reduce_rms_norm_dynamic_fp8(Tensor input, Tensor residual, Tensor weight, float eps, "
      "str group_name=\"\", *, float weight_bias=0.0, str algorithm=\"auto\") -> (Tensor, Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(llcoll, CPU, m)
{
  m.impl("rms_norm", &llcoll::rms_norm_kernel);
  m.impl("add_rms_norm", &llcoll::add_rms_norm_kernel);
  m.impl("all_reduce_rms_norm", &llcoll::all_reduce_rms_norm_kernel);
  m.impl("all_reduce_rms_norm_fp8", &llcoll::all_reduce_rms_norm_fp8_kernel);
  m.impl("all_reduce_rms_norm_dynamic_fp8", &llcoll::all_reduce_rms_norm_dynamic_fp8_kernel);
}
