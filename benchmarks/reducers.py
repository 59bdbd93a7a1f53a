"""In-place sums by name, for the programs that use them as a program would: decode, solver.

`baseline` is what a user has without llcoll: torch.distributed where it serves the device (Gloo on
the CPU, NCCL with a GPU a rank); in loopback, where NCCL may refuse, an NCCL that does not
(LLCOLL_BENCH_NCCL_LIBS), else torch symmetric memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist

import llcoll
from llcoll.bench.cases import Case
from llcoll.bench.forms import Cell
from llcoll.bench.peers import Missing, VllmCpu, make_nccl
from llcoll.bench.session import Session

Reduce = Callable[[torch.Tensor], None]
LL_LIMIT = 1 << 20  # beyond it the paper's "LL" configuration falls back to the baseline


@dataclass
class Reducer:
    name: str
    about: str
    # For tensors that live as long as the program: what it calls each time.
    bind: Callable[[torch.Tensor], Callable[[], object]]
    empty: Callable[..., torch.Tensor] = torch.empty


def baseline(session: Session) -> Reducer:
    if not session.is_cuda:
        return Reducer("baseline", "torch.distributed, Gloo", _dist(session.control))
    if not session.machine.shares_device:
        world = dist.group.WORLD
        assert world is not None
        return Reducer("baseline", "torch.distributed, NCCL", _dist(world))
    reason = ""
    try:
        nccl = make_nccl(session, "nccl", Missing)[0]
    except Exception as error:  # whatever keeps NCCL from serving two ranks on one GPU
        reason = str(error) or type(error).__name__
    reason = session.first_reason(reason)
    if not reason:

        def bind_nccl(x: torch.Tensor) -> Callable[[], object]:
            cell = Cell(session, Case(x.dtype, "sum", session.world_size), x.numel(), "eager")
            return nccl.call(cell, x, x)  # type: ignore[attr-defined]

        return Reducer("baseline", f"NCCL {nccl.version}", bind_nccl)
    return Reducer(
        "baseline", f"torch symmetric memory, since NCCL: {reason}", _torch_symmetric(session)
    )


def _dist(group: dist.ProcessGroup) -> Callable[[torch.Tensor], Callable[[], object]]:
    return lambda x: partial(dist.all_reduce, x, group=group)


def _torch_symmetric(session: Session) -> Callable[[torch.Tensor], Callable[[], object]]:
    from torch.distributed import _symmetric_memory as symmetric

    name = session.communicator.group_name
    pool = symmetric.empty(16 << 20, dtype=torch.uint8, device=session.device)
    symmetric.rendezvous(pool, name)

    def bind(x: torch.Tensor) -> Callable[[], object]:
        if x.numel() * x.element_size() % 16:
            raise RuntimeError(f"torch symmetric memory takes multiples of 16 B, not {x.shape}")
        buffer = pool[: x.numel() * x.element_size()].view(x.dtype).view(x.shape)

        def run() -> None:
            x.copy_(torch.ops.symm_mem.one_shot_all_reduce_copy(buffer, x, "sum", name))

        return run

    return bind


def _llcoll(x: torch.Tensor) -> Callable[[], object]:
    return partial(torch.ops.llcoll.all_reduce_.default, x)


def make_reducers(session: Session, dtype: torch.dtype) -> list[Reducer]:
    """The baseline first; then llcoll, with its features off one by one; then installed peers that
    have the type."""
    base = baseline(session)

    def ll_only(x: torch.Tensor) -> Callable[[], object]:
        if x.numel() * x.element_size() > LL_LIMIT:
            return base.bind(x)
        return partial(torch.ops.llcoll.all_reduce_.default, x, algorithm="one_shot_ll")

    made = [
        base,
        Reducer("llcoll", "auto, tensors of llcoll.empty", _llcoll, llcoll.empty),
        Reducer("no symmetric memory", "auto, ordinary tensors", _llcoll),
        Reducer("LL only", "one_shot_ll up to 1 MiB, else the baseline", ll_only),
        Reducer("llcoll plan", "persistent calls, tensors of llcoll.empty", _plan, llcoll.empty),
    ]
    if not session.is_cuda and dtype in VllmCpu.dtypes:
        vllm, reason = None, ""
        try:
            vllm = VllmCpu(session)
        except Exception as error:  # not installed, or not for this CPU
            reason = str(error)
        if not session.first_reason(reason) and vllm is not None:
            made.append(
                Reducer(
                    "vLLM",
                    "its shared-memory all-reduce",
                    lambda x: partial(vllm.ops.shm_allreduce.default, vllm.handle, x),
                )
            )
    return made


def _plan(x: torch.Tensor) -> Callable[[], object]:
    return llcoll.plan(x)
