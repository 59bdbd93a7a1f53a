"""The libraries to compare with: those that are installed run, the others are named with a reason.

A peer reduces as it does best for its user: in place, or out of place where it has that. Where a
result may stay in the library's own memory (torch symmetric memory, NCCL windows), it does.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from .contenders import Contender
from .forms import Call, Cell, Form
from .peer_mpi import make_mpi
from .peer_nccl import make_nccl
from .session import Session

SYMMETRIC_BYTES = 64 << 20


class Missing(Exception):
    """Why a peer cannot run here."""


class Gloo(Contender):
    """torch.distributed on the CPU, in place."""

    name = "gloo"

    def __init__(self, session: Session) -> None:
        if session.is_cuda:
            raise Missing("it reduces CPU tensors")
        self.group = session.control
        self.ops = {
            "sum": dist.ReduceOp.SUM,
            "min": dist.ReduceOp.MIN,
            "max": dist.ReduceOp.MAX,
            "prod": dist.ReduceOp.PRODUCT,
        }

    def why_not(self, cell: Cell) -> str:
        if cell.case.op not in self.ops:
            return f"Gloo has no {cell.case.op}"
        return "Gloo has no 1-byte floats" if "float8" in cell.dtype_name() else ""

    def forms(self, cell: Cell) -> list[Form]:
        op = self.ops[cell.case.op]
        calls: list[Call] = [
            partial(dist.all_reduce, x, op=op, group=self.group) for x in cell.inputs
        ]
        return [Form(cell, calls, in_place=True)]


class SumsOnly(Contender):
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.bfloat16, torch.float16)
    max_bytes = 1 << 62
    unit_bytes = 1

    def why_not(self, cell: Cell) -> str:
        if cell.case.op != "sum" or cell.case.dtype not in self.dtypes:
            names = ", ".join(str(dtype).removeprefix("torch.") for dtype in self.dtypes)
            return f"{self.name} has sums of {names}"
        if cell.num_bytes > self.max_bytes or cell.num_bytes % self.unit_bytes:
            return f"{self.name} takes multiples of {self.unit_bytes} B up to {self.max_bytes} B"
        return ""


class TorchSymmetric(SumsOnly):
    """torch symmetric memory: one_shot copies the input in, two_shot_ reduces in place."""

    unit_bytes = 16
    max_bytes = SYMMETRIC_BYTES

    def __init__(self, session: Session, two_shot: bool) -> None:
        from torch.distributed import _symmetric_memory as symmetric

        if not session.is_cuda:
            raise Missing("it needs CUDA")
        self.name = f"torch-symm-{'two' if two_shot else 'one'}-shot"
        self.two_shot = two_shot
        self.version = torch.__version__
        world = dist.group.WORLD
        assert world is not None
        self.group_name = world.group_name
        self.pool = symmetric.empty(self.max_bytes, dtype=torch.uint8, device=session.device)
        symmetric.rendezvous(self.pool, self.group_name)

    def forms(self, cell: Cell) -> list[Form]:
        ops, name = torch.ops.symm_mem, self.group_name
        buffer = self.pool[: cell.num_bytes].view(cell.case.dtype)

        def copy_two_shot(x: torch.Tensor) -> torch.Tensor:
            buffer.copy_(x)
            return ops.two_shot_all_reduce_(buffer, "sum", name)

        if not self.two_shot:
            calls: list[Call] = [
                partial(ops.one_shot_all_reduce_copy, buffer, x, "sum", name) for x in cell.inputs
            ]
            return [Form(cell, calls, in_place=False)]
        on_own: Call = partial(ops.two_shot_all_reduce_, buffer, "sum", name)
        return [
            Form(cell, [partial(copy_two_shot, x) for x in cell.inputs], in_place=False),
            Form(cell, [on_own], in_place=True, inputs=[buffer]),
        ]


class VllmCpu(SumsOnly):
    """vLLM's shared-memory all-reduce of its CPU library, in place."""

    name = "vllm"

    def __init__(self, session: Session) -> None:
        library = os.environ.get("LLCOLL_BENCH_VLLM_LIB")
        if not library:
            raise Missing("LLCOLL_BENCH_VLLM_LIB does not name its library (_C_AVX512.abi3.so)")
        torch.ops.load_library(library)
        self.ops: Any = torch.ops._C
        name = session.from_rank_0(f"llcoll-bench-vllm-{os.getpid()}")
        self.handle = self.ops.init_shm_manager(name, session.world_size, session.rank, 1)
        session.barrier()
        self.ops.join_shm_manager(self.handle, name)
        session.barrier()

    def forms(self, cell: Cell) -> list[Form]:
        reduce = self.ops.shm_allreduce.default
        calls: list[Call] = [partial(reduce, self.handle, x) for x in cell.inputs]
        return [Form(cell, calls, in_place=True)]


class VllmCuda(SumsOnly):
    """vLLM's custom all-reduce, out of place. Its graphs need buffers registered by its own
    capture context, so in a graph it would copy as it does in eager mode."""

    name = "vllm"
    unit_bytes = 16

    def __init__(self, session: Session) -> None:
        where = "vllm.distributed.device_communicators.custom_all_reduce"
        module = importlib.import_module(where)
        self.version = importlib.import_module("vllm").__version__
        self.max_bytes = 8 << 20
        self.reduce = module.CustomAllreduce(session.control, session.device, self.max_bytes)
        if self.reduce.disabled:
            raise Missing("its CustomAllreduce turned itself off on this machine")

    def forms(self, cell: Cell) -> list[Form]:
        calls: list[Call] = [
            partial(self.reduce.all_reduce, x, registered=False) for x in cell.inputs
        ]
        return [Form(cell, calls, in_place=False)]


class Flashinfer(SumsOnly):
    """flashinfer.comm's all-reduce (TensorRT-LLM's kernels), out of place."""

    name = "flashinfer"
    unit_bytes = 16
    HIDDEN = 1024

    def __init__(self, session: Session) -> None:
        self.comm = importlib.import_module("flashinfer.comm")
        self.version = importlib.import_module("flashinfer").__version__
        self.max_bytes = 8 << 20
        self.session = session
        self.workspaces: dict[torch.dtype, Any] = {}

    def why_not(self, cell: Cell) -> str:
        if cell.numel % 8:
            return "flashinfer takes rows of 8 elements or more"
        return super().why_not(cell)

    def forms(self, cell: Cell) -> list[Form]:
        dtype = cell.case.dtype
        if dtype not in self.workspaces:
            rows = self.max_bytes // (self.HIDDEN * dtype.itemsize)
            self.workspaces[dtype] = self.comm.create_allreduce_fusion_workspace(
                backend="trtllm",
                world_size=self.session.world_size,
                rank=self.session.rank,
                max_token_num=rows,
                hidden_dim=self.HIDDEN,
                dtype=dtype,
            )
        width = self.HIDDEN if cell.numel % self.HIDDEN == 0 else 8
        reduce = partial(
            self.comm.allreduce_fusion,
            workspace=self.workspaces[dtype],
            pattern=self.comm.AllReduceFusionPattern.kAllReduce,
            launch_with_pdl=True,
            fp32_acc=True,
        )
        calls: list[Call] = [
            partial(reduce, input=x.view(-1, width), output=y.view(-1, width))
            for x, y in zip(cell.inputs, cell.outs, strict=True)
        ]
        # It returns the output in its own shape; what is compared is our view of it.
        return [Form(cell, [partial(_call, call) for call in calls], in_place=False)]

    def close(self) -> None:
        for workspace in self.workspaces.values():
            workspace.destroy()


def _call(call: Call) -> None:
    call()


def _vllm(session: Session) -> list[Contender]:
    return [VllmCuda(session) if session.is_cuda else VllmCpu(session)]


def _flashinfer(session: Session) -> list[Contender]:
    if not session.is_cuda:
        raise Missing("it needs CUDA")
    return [Flashinfer(session)]


def _not_driven(what: str) -> Callable[[Session], list[Contender]]:
    def make(session: Session) -> list[Contender]:
        raise Missing(what)

    return make


AS_NCCL = "give its NCCL-compatible library as LLCOLL_BENCH_NCCL_LIBS=NAME=PATH and compare NAME"
PEERS: dict[str, Callable[[Session], list[Contender]]] = {
    "torch-symm": lambda s: [TorchSymmetric(s, False), TorchSymmetric(s, True)],
    "nccl": lambda s: make_nccl(s, "nccl", Missing),
    "nccl-ring": lambda s: make_nccl(s, "nccl", Missing, "Ring"),
    "nccl-tree": lambda s: make_nccl(s, "nccl", Missing, "Tree"),
    "gloo": lambda s: [Gloo(s)],
    "mpi": lambda s: make_mpi(s, Missing),
    "vllm": _vllm,
    "flashinfer": _flashinfer,
    "mscclpp": _not_driven(AS_NCCL),
    "ncclx": _not_driven(AS_NCCL),
    "nvshmem": _not_driven("llcoll.bench has no driver for it"),
}


def make_peers(session: Session, names: list[str]) -> tuple[list[Contender], dict[str, str]]:
    """The contenders that run, and the missing ones with the reason. Collective."""
    known = dict(PEERS)
    for pair in filter(None, os.environ.get("LLCOLL_BENCH_NCCL_LIBS", "").split(",")):
        name = pair.partition("=")[0]
        known[name] = partial(make_nccl, name=name, missing=Missing)
    made: list[Contender] = []
    missing: dict[str, str] = {}
    for name in list(known) if names == ["all"] else names:
        contenders: list[Contender] = []
        reason = ""
        if name not in known:
            reason = f"unknown; choose from {', '.join(known)}, all"
        else:
            try:
                contenders = known[name](session)
            except Missing as error:
                reason = str(error)
            except Exception as error:  # any reason is a reason to leave it out, and is shown
                reason = f"{type(error).__name__}: {str(error).splitlines()[:1]}"
        reason = session.first_reason(reason)
        if reason:
            missing[name] = reason
            for contender in contenders:
                contender.close()
        else:
            made += contenders
    return made, missing
