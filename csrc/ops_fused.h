// The fused ops: all-reduce, residual and norm in one. Compiled into each shared object.
#pragma once

#include "ops_common.h"

namespace llcoll {

// Boxed kernels; the schemas are in ops_fused_cpu.cpp.
void rms_norm_kernel(StableIValue* stack, uint64_t num_inputs, uint64_t num_outputs);
void add_rms_norm_kernel(StableIValue* stack, uint64_t num_inputs, uint64_t num_outputs);
void all_reduce_rms_norm_kernel(StableIValue* stack, uint64_t num_inputs, uint64_t num_outputs);
void all_reduce_rms_norm_fp8_kernel(StableIValue* stack, uint64_t num_inputs, uint64_t num_outputs);
void all_reduce_rms_norm_dynamic_fp8_kernel(StableIValue* stack, uint64_t num_inputs, uint64_t num_outputs);

}  // namespace llcoll
