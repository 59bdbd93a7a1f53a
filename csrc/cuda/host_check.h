// Debug mode (LLCOLL_DEBUG=1) on CUDA: the ranks compare each call on the host, before anything is launched.
#pragma once

#include <memory>

#include "communicator.h"
#include "cpu/rendezvous.h"

namespace llcoll {

class HostCheck {
 public:
  // Collective: maps a page of every rank's host memory. Succeeds or throws the same text on every rank.
  HostCheck(const Options& options, const AllGather& all_gather);
  ~HostCheck();
  HostCheck(const HostCheck&) = delete;
  HostCheck& operator=(const HostCheck&) = delete;

  // Waits for every rank's call; throws CollectiveMismatch, alike on all, where they differ or one of them raised;
  // CollectiveTimeout where one does not come. Epochs live on the device: the calls so far by the same protocol stand
  // for it. Calls inside a capture are compared when they are captured, replays are not.
  void compare(const CollectiveCall& call);
  void announce(const std::string& what);
  void abort();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace llcoll
