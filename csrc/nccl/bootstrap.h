// llcoll's bootstrap over an NCCL communicator: its own all-gather, whoever made it and however.
#pragma once

#include <cstddef>
#include <memory>

#include "nccl/abi.h"

namespace llcoll::nccl {

class Bootstrap {
 public:
  virtual ~Bootstrap() = default;
  Bootstrap(const Bootstrap&) = delete;
  Bootstrap& operator=(const Bootstrap&) = delete;
  // An llcoll_all_gather_fn; `context` is the Bootstrap. Bounded.
  static int all_gather(void* context, const void* own, size_t bytes, void* all);

 protected:
  Bootstrap() = default;
  virtual bool gather(const void* own, size_t bytes, void* all) = 0;
};

// Through memory of the communicator's GPU and a stream of its own, by the driver's functions (libcuda.so.1 is there
// wherever NCCL works). Null, with the reason logged, where they fail.
std::unique_ptr<Bootstrap> make_gpu_bootstrap(Comm comm, int device, int num_ranks);
// Tests: an NCCL whose "device" memory is the host's.
std::unique_ptr<Bootstrap> make_host_bootstrap(Comm comm);

}  // namespace llcoll::nccl
