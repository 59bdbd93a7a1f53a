// Makes a device current for a while.
#pragma once

#include <cuda_runtime.h>

#include "cuda/cuda_check.h"

namespace llcoll {

class CudaDeviceScope {
 public:
  explicit CudaDeviceScope(int device) {
    check_cuda(cudaGetDevice(&saved_), "cudaGetDevice");
    if (saved_ != device) check_cuda(cudaSetDevice(device), "cudaSetDevice");
    changed_ = saved_ != device;
  }
  ~CudaDeviceScope() {
    if (changed_) cudaSetDevice(saved_);
  }

 private:
  int saved_ = 0;
  bool changed_ = false;
};

}  // namespace llcoll
