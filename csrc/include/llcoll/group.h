// Who executes a collective: the group policy. One source of the algorithms serves all of them.
//
//   rank, size      this member and how many there are      channel    which channel of the scratch they serve
//   sync()          barrier of the members (CTA scope)      any(b)     the same, and true where any member said true
//   each(n, f)      the phase loop: f(i) for i in [0, n), split over the members; the same i always meets the same
//                   member, so whoever reads an input element is the one that later overwrites it (in-place calls)
//   kOnce           each() runs f at most once per member: a value may be kept from one phase to the next
//   kLineLanes      members that share a 128-byte line (ll128.h); first_of_line(x): the x of the line's first member;
//                   all_lanes(b), any_lane(b): votes of the members that poll as one; line_is_together(): what the
//                   members of the line access next is one access; sync_line(): barrier of those members
//   board(k)        one of 2 * kMaxRanks words that all members see; a barrier stands between writing and reading
//   kOneEpoch       the launch has one epoch: no loop, no code for the next chunk
//   may_overlap()   the launch before this one over the same scratch, `last_launch`, may still be at work
//   trigger()       nothing after this waits for a peer: launches that depend on this one may start; all members call
//   it
#pragma once

#include "llcoll/word.h"

namespace llcoll {
inline namespace LLC_ISA {

// One thread alone: a CPU rank, or a fiber of the simulator.
struct Solo {
  static constexpr bool kOnce = false;
  static constexpr bool kOneEpoch = false;
  uint32_t rank = 0;
  uint32_t size = 1;
  uint32_t channel = 0;
  LLC_FN void sync() const {}
  LLC_FN bool any(bool value) const { return value; }
  static constexpr int kLineLanes = 1;
  LLC_FN uint32_t first_of_line(uint32_t x) const { return x; }
  LLC_FN bool line_is_together() const { return true; }
  static LLC_FN void sync_line() {}
  LLC_FN bool all_lanes(bool value) const { return value; }
  LLC_FN bool any_lane(bool value) const { return value; }
  static constexpr uint32_t launch = 0;
  static constexpr uint32_t last_launch = 0;
  LLC_FN bool may_overlap() const { return false; }
  LLC_FN void trigger() const {}
  template <class F>
  LLC_FN void each(uint32_t n, F&& f) const {
    for (uint32_t i = 0; i < n; ++i) f(i);
  }
};

// With a board, which costs the others nothing.
struct SoloWithBoard : Solo {
  mutable uint64_t words[2 * kMaxRanks];
  LLC_FN uint64_t& board(int k) const { return words[k]; }
};

#if defined(__CUDACC__)
// All threads of a CTA; the CTA index is the channel.
template <bool once>
struct Cta {
  static constexpr bool kOnce = once;
  static constexpr bool kOneEpoch = once;
  uint32_t rank = threadIdx.x;
  uint32_t size = blockDim.x;
  uint32_t channel = blockIdx.x;
  bool early_trigger = false;
  uint32_t launch = 0;       // this launch's id, kept in the record
  uint32_t last_launch = 0;  // id of the launch that may still be at work; 0: none
  LLC_FN void sync() const { __syncthreads(); }
  LLC_FN bool any(bool value) const {
    if (size > 32) return __syncthreads_or(value);
    __syncwarp();  // orders memory, which the vote does not; launches have whole warps
    return __any_sync(0xFFFFFFFFu, value);
  }
  LLC_FN bool may_overlap() const { return last_launch != 0; }
  LLC_FN void trigger() const {
#if __CUDA_ARCH__ >= 900
    if (early_trigger) cudaTriggerProgrammaticLaunchCompletion();
#endif
  }
  // Whole warps only: 4 lines each.
  static constexpr int kLineLanes = 8;
  LLC_FN uint32_t first_of_line(uint32_t x) const { return __shfl_sync(0xFFFFFFFFu, x, 0, 8); }
  LLC_FN bool line_is_together() const { return (__activemask() >> (threadIdx.x & 24u) & 0xFFu) == 0xFFu; }
  static LLC_FN void sync_line() { __syncwarp(0xFFu << (threadIdx.x & 24u)); }
  LLC_FN bool all_lanes(bool value) const { return __all_sync(0xFFFFFFFFu, value); }
  LLC_FN bool any_lane(bool value) const { return __any_sync(0xFFFFFFFFu, value); }
  LLC_FN uint64_t& board(int k) const {
    __shared__ uint64_t words[2 * kMaxRanks];
    return words[k];
  }
  template <class F>
  LLC_FN void each(uint32_t n, F&& f) const {
    if constexpr (once) {
      if (rank < n) f(rank);
    } else {
      for (uint32_t i = rank; i < n; i += size) f(i);
    }
  }
};

// The lanes of one warp; each warp of the grid is a channel of its own. All 32 lanes take part.
struct Warp {
  static constexpr bool kOnce = false;
  uint32_t rank = threadIdx.x % 32;
  uint32_t size = 32;
  uint32_t channel = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  LLC_FN void sync() const { __syncwarp(); }
  LLC_FN bool any(bool value) const { return __any_sync(0xFFFFFFFFu, value); }
  template <class F>
  LLC_FN void each(uint32_t n, F&& f) const {
    for (uint32_t i = rank; i < n; i += size) f(i);
  }
};
#endif

}  // namespace LLC_ISA
}  // namespace llcoll
