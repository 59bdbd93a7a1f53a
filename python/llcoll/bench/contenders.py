"""Who is timed. A contender offers its forms at a size, or says why it has none."""

from __future__ import annotations

from functools import partial

import torch

import llcoll

from .. import _C
from .forms import Call, Cell, CpuRepeatForm, CudaRepeatForm, Form
from .session import Session

IN_KERNEL = {"one_shot_ll": 8, "one_shot_sentinel": 16}  # unit bytes
MAX_IN_KERNEL_UNITS = 512


class Contender:
    name: str
    version = ""
    is_peer = True
    # A named algorithm far behind at a size is looked at once; a peer is always measured.
    may_be_dropped = False

    def why_not(self, cell: Cell) -> str:
        """Why it cannot reduce this size, type or operator here; alike on every rank."""
        return ""

    def forms(self, cell: Cell) -> list[Form]:
        """Out of place, in place: those that it has. Collective."""
        raise NotImplementedError

    def close(self) -> None:
        pass


class Llcoll(Contender):
    is_peer = False

    def __init__(
        self, algorithm: str, may_be_dropped: bool = False, name_auto: bool = False
    ) -> None:
        self.name = algorithm
        self.name_auto = name_auto
        self.version = llcoll.__version__
        self.may_be_dropped = may_be_dropped

    def resolved(self, cell: Cell) -> str:
        communicator = cell.session.communicator
        return communicator._backend.resolve(
            communicator.group_name, cell.numel, cell.dtype_name(), cell.case.op, self.name
        )

    def why_not(self, cell: Cell) -> str:
        try:
            algorithm = self.resolved(cell)
        except llcoll.LlcollError as error:
            return str(error)
        session = cell.session
        if algorithm == "torch":
            if cell.mode == "in-kernel":
                return "beyond llcoll's range: torch.distributed serves it"
            if session.is_cuda and session.machine.shares_device:
                return "torch.distributed serves it, which has no CUDA group in loopback"
        if cell.mode == "in-kernel" and session.is_cuda:
            unit = IN_KERNEL.get(algorithm)
            if unit is None or cell.case.dtype != torch.bfloat16 or cell.case.op != "sum":
                return "in-kernel: one_shot_ll and one_shot_sentinel, sums of bfloat16"
            if cell.num_bytes % unit or cell.num_bytes > unit * MAX_IN_KERNEL_UNITS:
                return f"in-kernel: whole units of {unit} B, at most {MAX_IN_KERNEL_UNITS}"
            if session.world_size not in (2, 4, 8):
                return "in-kernel: 2, 4 or 8 ranks"
        return ""

    def forms(self, cell: Cell) -> list[Form]:
        if cell.mode == "in-kernel":
            algorithm = self.resolved(cell)
            if cell.session.is_cuda:
                return [CudaRepeatForm(cell, algorithm)]
            return [CpuRepeatForm(cell, algorithm, in_place) for in_place in (False, True)]
        pairs = [self.calls(cell, x, y) for x, y in zip(cell.inputs, cell.outs, strict=True)]
        return [
            Form(cell, [out for out, _ in pairs], in_place=False),
            Form(cell, [own for _, own in pairs], in_place=True),
        ]

    def calls(self, cell: Cell, x: torch.Tensor, out: torch.Tensor) -> tuple[Call, Call]:
        """Out of place, in place; without arguments. What graph mode captures is eager."""
        op, ops = cell.case.op, torch.ops.llcoll
        if cell.mode == "plan":
            return (
                llcoll.plan(x, op, algorithm=self.name, out=out),
                llcoll.plan(x, op, algorithm=self.name),
            )
        # Arguments left at their defaults cost the dispatcher nothing: where auto is set against
        # named algorithms, it is named too.
        given = {} if self.name == "auto" and not self.name_auto else {"algorithm": self.name}
        positional = () if op == "sum" else (op,)
        in_place = partial(ops.all_reduce_.default, x, *positional, **given)
        if cell.mode == "graph":
            return partial(ops.all_reduce_out.default, x, *positional, out=out, **given), in_place
        return partial(ops.all_reduce.default, x, *positional, **given), in_place


def usable_algorithms(
    session: Session, dtype: torch.dtype, op: str, low_precision: bool = False
) -> list[str]:
    """What selection may pick here under the communicator's policy, besides what only a real
    torch.distributed group serves. `low_precision`: as if the communicator allowed it."""
    communicator = session.communicator
    chosen = communicator.settings
    name = str(dtype).removeprefix("torch.")

    def serves(algorithm: str) -> bool:
        if algorithm == "auto" or (algorithm == "torch" and session.machine.shares_device):
            return False
        allow = low_precision or chosen.allow_low_precision
        if not _C.usable(algorithm, name, op, chosen.policy, allow):
            return False
        try:
            communicator._backend.resolve(communicator.group_name, 64, name, op, algorithm)
        except llcoll.LlcollError:
            return False  # it needs what this machine has not
        return True

    return [algorithm for algorithm in _C.algorithms() if serves(algorithm)]
