#include "sim/fiber.h"

// llcoll_sim_switch(from, to): all that the ABI lets a callee keep, then the other stack.
asm(R"(
.text
.globl llcoll_sim_switch
.hidden llcoll_sim_switch
.type llcoll_sim_switch, @function
llcoll_sim_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size llcoll_sim_switch, .-llcoll_sim_switch
)");
