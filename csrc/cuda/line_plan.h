// LL128 on CUDA: where it may be offered, its scratch, and from a call to a launch.
#pragma once

#include "cuda/launch_plan.h"
#include "llcoll/ll128.h"

namespace llcoll {

// True where 128-byte requests between `device` and the GPU of `uuid` (16 bytes) stay whole: the same GPU, or one that
// this process sees and reaches by NVLink. PCIe splits them, and a GPU that is not visible here cannot be asked about.
bool lines_stay_whole(int device, const char* uuid);

// No slots where `bytes` cannot hold a tile: LL128 is then not offered.
ScratchShape plan_line_scratch(uint64_t bytes, uint32_t max_channels, int num_ranks);
LaunchPlan plan_line_launch(const CollectiveCall& call, int num_ranks, const CudaLayout& layout, uint32_t max_channels);

}  // namespace llcoll
