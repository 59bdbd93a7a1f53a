// What a waiting kernel shares with its peers and with the host. Plain structs, for host and device.
#pragma once

#include <cstdint>

#include "llcoll/types.h"

namespace llcoll {

inline constexpr uint32_t kUserAbort = 0x10000;

// At the start of each rank's symmetric buffer. Peers write `aborted`; `awaited` is the owner's.
struct DeviceControl {
  uint32_t aborted;  // 1 + culprit; 0: none; kUserAbort
  uint32_t padding[31];
  uint32_t awaited;  // 1 + whom the owner has been awaiting for long; 0: nobody
  uint32_t beat;     // changes while the owner awaits somebody: a dead one leaves its `awaited` behind
  uint32_t padding2[30];
};
static_assert(sizeof(DeviceControl) == 256);

// In pinned host memory: what the host learns of a failed kernel. Written once, `valid` last.
struct FailureRecord {
  uint32_t valid;
  int32_t culprit;
  int32_t source;
  int32_t algorithm;
  uint64_t epoch;
};

// How long a kernel waits; a kernel parameter.
struct DeviceWait {
  const uint32_t* own_abort;  // &controls[rank]->aborted
  DeviceControl* controls[kMaxRanks];
  FailureRecord* record;
  uint64_t timeout_ns;  // 0: forever
  int32_t rank;
  int32_t num_ranks;
  int32_t algorithm;
};

}  // namespace llcoll
