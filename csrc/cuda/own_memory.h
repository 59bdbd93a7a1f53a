// Memory of one GPU that other processes' GPUs load and store: for communicators without torch. By CUDA's virtual
// memory, shared by POSIX descriptors over the sockets of the CPU backend. What a peer has mapped stays until the peer
// unmaps it, so a rank that leaves, or dies, takes nothing away from under a late store.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cpu/rendezvous.h"
#include "cuda/cuda_communicator.h"

namespace llcoll {

class OwnMemory {
 public:
  // Collective: `bytes` on every rank's device, mapped by every rank. Succeeds or throws the same text on every rank.
  OwnMemory(int device, int rank, int world_size, uint64_t bytes, const AllGather& all_gather, double timeout_s);
  ~OwnMemory();  // no kernel of this rank may still use it
  OwnMemory(const OwnMemory&) = delete;
  OwnMemory& operator=(const OwnMemory&) = delete;

  const CudaMemory& memory() const { return memory_; }
  // Stays mapped for the life of the process: where a kernel of this rank may still run.
  void keep() { is_kept_ = true; }

 private:
  uint64_t map(uint64_t handle);
  void unmap_all();

  CudaMemory memory_;
  bool is_kept_ = false;
};

}  // namespace llcoll
