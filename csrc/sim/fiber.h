// Fibers: the members of a simulated grid. A switch saves the callee-saved registers on the fiber's own stack, so that
// a fiber is its stack and one pointer: the explorer copies both to go back in time.
#pragma once

#include <cstddef>
#include <cstdint>

namespace llcoll::sim {

#if !defined(__x86_64__)
#error "the simulator's fibers are written for x86-64"
#endif

// Saves the running context behind *from and continues at `to`.
extern "C" void llcoll_sim_switch(void** from, void* to);

// A stack whose first switch enters `entry`, which must never return.
inline void* make_fiber(char* top, void (*entry)()) {
  auto* sp = reinterpret_cast<void**>(top);
  *--sp = nullptr;  // keeps the stack pointer of `entry` as the ABI wants it: 8 below a multiple of 16
  *--sp = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; ++i) *--sp = nullptr;  // rbp, rbx, r12 to r15
  return sp;
}

}  // namespace llcoll::sim
