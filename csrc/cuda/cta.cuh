// The group of a kernel's CTA, with its place in the order of launches.
#pragma once

#include "cuda/kernel_args.h"
#include "llcoll/group.h"

namespace llcoll {

template <bool once>
LLC_FN Cta<once> make_cta(const LaunchOrder& order) {
  Cta<once> group;
  group.early_trigger = order.early_trigger;
  group.launch = order.launch;
  group.last_launch = order.last_launch[blockIdx.x];
  return group;
}

}  // namespace llcoll
