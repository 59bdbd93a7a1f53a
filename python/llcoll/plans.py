"""Persistent collectives: everything resolved once."""

from collections.abc import Sequence
from typing import Any

import torch

from . import _ops, _ops_collectives
from ._C import Plan
from ._errors import LlcollError, converted
from .communicator import find
from .rendezvous import check_same


def plan(
    tensor: torch.Tensor,
    op: str = "sum",
    group: Any = None,
    algorithm: str = "auto",
    out: torch.Tensor | None = None,
    *,
    collective: str = "all_reduce",
    root: int = 0,
    splits: Sequence[int] | None = None,
    input_splits: Sequence[int] | None = None,
    output_splits: Sequence[int] | None = None,
) -> Plan:
    """A collective from `tensor` into `out` (into itself, without one), to be run again and again.

    collective: "all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce" or "all_to_all".
    `root` and the splits are those of the functions of that name; a reduce_scatter, all_gather or
    all_to_all needs `out`. Collective: every rank of the group makes the plan, with the same call,
    or all raise the same error. The result, called without arguments, runs it on the tensor's
    present contents; so does its method run(). It holds both tensors.
    """
    communicator = find(group, tensor.device.type)
    backend = communicator._backend
    made: list[Plan] = []

    def create(target: torch.Tensor) -> int:
        name = communicator.group_name
        if collective == "all_reduce":
            return _ops.ops._plan_create.default(tensor, target, op, name, algorithm)
        if collective not in _ops_collectives.KINDS:
            choices = ", ".join(dict.fromkeys(_ops_collectives.KINDS))
            raise LlcollError(f"collective is {collective!r}; choose from {choices}")
        ins, outs = input_splits or (), output_splits or ()
        if splits is not None:
            ins, outs = (splits, ()) if collective == "reduce_scatter" else ((), splits)
        return _ops.ops._exchange_plan_create.default(
            tensor,
            target,
            _ops_collectives.KINDS.index(collective),
            op,
            root,
            name,
            list(ins),
            list(outs),
            algorithm,
        )

    def make() -> dict[str, Any]:
        target = tensor if out is None else out
        try:
            number = create(target)
        except RuntimeError as error:
            raise converted(error) from None
        made.append(backend.plan(number, tensor, target))
        return {"the call": made[0].signature}

    check_same("plan", communicator.exchange("plan").agree(make))
    return made[0]
