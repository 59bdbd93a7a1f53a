"""Persistent all-reduces: everything resolved once."""

from typing import Any

import torch

from . import _ops
from ._C import Plan
from ._errors import converted
from .communicator import find
from .rendezvous import check_same


def plan(
    tensor: torch.Tensor,
    op: str = "sum",
    group: Any = None,
    algorithm: str = "auto",
    out: torch.Tensor | None = None,
) -> Plan:
    """An all-reduce of `tensor` into `out` (into itself, without one), to be run again and again.

    Collective: every rank of the group makes it, with the same number of elements, dtype, op and
    algorithm, or all raise the same error. The result, called without arguments, runs it on the
    tensor's present contents; so does its method run(). It holds both tensors.
    """
    communicator = find(group, tensor.device.type)
    backend = communicator._backend
    made: list[Plan] = []

    def make() -> dict[str, Any]:
        target = tensor if out is None else out
        try:
            number = _ops.ops._plan_create.default(
                tensor, target, op, communicator.group_name, algorithm
            )
        except RuntimeError as error:
            raise converted(error) from None
        made.append(backend.plan(number, tensor, target))
        return {"the call": made[0].signature}

    check_same("plan", communicator.exchange("plan").agree(make))
    return made[0]
