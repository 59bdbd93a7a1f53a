// A root-mean-square norm of rows, as the backends take it. No torch, no Python.
#pragma once

#include <cstddef>
#include <cstdint>

#include "llcoll/types.h"

namespace llcoll {

// What is written: the element type of the rows, or float8_e4m3fn by one scale for all, or by a scale per row.
enum class NormOutput : int32_t { kSame, kFp8, kFp8PerRow };

// Contiguous rows of float32, float16 or bfloat16; the arithmetic and its order are llcoll/rms_norm.h's. `residual` and
// `residual_out` are both set or both null; `input` may equal `residual_out`.
struct NormCall {
  const void* input;
  const void* residual;
  void* residual_out;
  const void* weight;  // num_columns elements
  void* output;
  const float* scale;  // kFp8: one value where the tensors are
  float* scales;       // kFp8PerRow: one for each row, written
  size_t num_rows;
  uint32_t num_columns;
  DType dtype;
  NormOutput kind;
  float eps;
  float weight_bias;
  int device_index;  // ignored on CPU
  void* stream;      // a cudaStream_t, ignored on CPU
};

// Runs (CPU) or enqueues (CUDA) it: each shared object has its own.
void run_rms_norm(const NormCall& call);

}  // namespace llcoll
