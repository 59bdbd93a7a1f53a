// The CPU backend: one communicator over shared memory.
#pragma once

#include <memory>

#include "communicator.h"
#include "cpu/rendezvous.h"

namespace llcoll {

// Collective over the group of `all_gather`: maps every rank's segment, agrees on the options, clears the scratch and
// passes a barrier. Succeeds or throws the same text on every rank.
std::shared_ptr<Communicator> make_cpu_communicator(const Options& options, const AllGather& all_gather);

}  // namespace llcoll
