"""The collectives of one exchange: reduce_scatter, all_gather, broadcast, reduce, all_to_all.

Parts are cut along dimension 0, in rank order. `group`: a process group, its name, or None for the
default group. `algorithm`: "auto", "one_shot_ll", "one_shot_flag", "torch", and for reductions of
floating-point types "one_shot_sentinel". Errors are raised before anything is sent.
"""

from collections.abc import Sequence
from typing import Any

import torch

from . import _ops
from ._errors import converted
from .communicator import group_name_of

_reduce_scatter = _ops.ops.reduce_scatter.default
_reduce_scatter_out = _ops.ops.reduce_scatter_out.default
_all_gather = _ops.ops.all_gather.default
_all_gather_out = _ops.ops.all_gather_out.default
_all_to_all = _ops.ops.all_to_all.default
_all_to_all_out = _ops.ops.all_to_all_out.default
_broadcast = _ops.ops.broadcast.default
_broadcast_ = _ops.ops.broadcast_.default
_reduce = _ops.ops.reduce.default
_reduce_ = _ops.ops.reduce_.default
_is_compiling = torch.compiler.is_compiling


def _call(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Each argument that an op is given costs 0.25 us: those at their defaults are left out."""
    kwargs = {name: value for name, value in kwargs.items() if value is not None}
    if kwargs["algorithm"] == "auto":
        del kwargs["algorithm"]
    if _is_compiling():
        return op(*args, **kwargs)
    try:
        return op(*args, **kwargs)
    except RuntimeError as error:
        raise converted(error) from None


def all_gather(
    input: torch.Tensor,
    group: Any = None,
    *,
    splits: Sequence[int] | None = None,
    algorithm: str = "auto",
) -> torch.Tensor:
    """Every rank's input, one after the other along dimension 0, as a new tensor.

    Inputs have the same shape, or `splits` (the same on every rank) gives each rank's rows. A copy
    is exact, NaNs too. The gradient is a reduce_scatter.
    """
    return _call(_all_gather, input, *_names(group), splits=splits, algorithm=algorithm)


def all_gather_out(
    input: torch.Tensor,
    group: Any = None,
    *,
    splits: Sequence[int] | None = None,
    algorithm: str = "auto",
    out: torch.Tensor,
) -> torch.Tensor:
    """all_gather into `out`, outside autograd; returns `out`. `input` may be its place in `out`."""
    _call(_all_gather_out, input, *_names(group), splits=splits, algorithm=algorithm, out=out)
    return out


def all_gather_into_tensor(
    output: torch.Tensor, input: torch.Tensor, group: Any = None, *, algorithm: str = "auto"
) -> torch.Tensor:
    """all_gather_out with torch.distributed's name, order and shapes.

    `output` holds the inputs one after the other (`[N d, ...]`) or stacked (`[N, d, ...]`).
    """
    part, whole = _flat(input, output, output)
    _call(_all_gather_out, part, *_names(group), algorithm=algorithm, out=whole)
    return output


def reduce_scatter(
    input: torch.Tensor,
    reduce_op: str = "sum",
    group: Any = None,
    *,
    splits: Sequence[int] | None = None,
    algorithm: str = "auto",
) -> torch.Tensor:
    """This rank's part of the reduction over all ranks, as a new tensor.

    The rows of `input` are cut evenly, or as `splits` (the same on every rank) says. An element's
    value does not depend on which rank owns it. The gradient of "sum" and "avg" is an all_gather.
    """
    return _call(
        _reduce_scatter, input, *_names(group, reduce_op), splits=splits, algorithm=algorithm
    )


def reduce_scatter_out(
    input: torch.Tensor,
    reduce_op: str = "sum",
    group: Any = None,
    *,
    splits: Sequence[int] | None = None,
    algorithm: str = "auto",
    out: torch.Tensor,
) -> torch.Tensor:
    """reduce_scatter into `out`, outside autograd; returns it. It may be its place in `input`."""
    _call(
        _reduce_scatter_out,
        input,
        *_names(group, reduce_op),
        splits=splits,
        algorithm=algorithm,
        out=out,
    )
    return out


def reduce_scatter_tensor(
    output: torch.Tensor,
    input: torch.Tensor,
    reduce_op: str = "sum",
    group: Any = None,
    *,
    algorithm: str = "auto",
) -> torch.Tensor:
    """reduce_scatter_out with torch.distributed's name, order and shapes.

    `input` holds the parts one after the other (`[N d, ...]`) or stacked (`[N, d, ...]`).
    """
    part, whole = _flat(output, input, output)
    _call(_reduce_scatter_out, whole, *_names(group, reduce_op), algorithm=algorithm, out=part)
    return output


def all_to_all(
    input: torch.Tensor,
    group: Any = None,
    *,
    input_splits: Sequence[int] | None = None,
    output_splits: Sequence[int] | None = None,
    algorithm: str = "auto",
) -> torch.Tensor:
    """Part p of `input` goes to rank p; part p of the result, a new tensor, came from rank p.

    Rows are cut evenly, or on every rank by both lists: what rank a's input_splits give rank b is
    what b's output_splits give a. Such a call takes part even where it is empty. A copy is exact.
    """
    return _call(
        _all_to_all,
        input,
        *_names(group),
        input_splits=input_splits,
        output_splits=output_splits,
        algorithm=algorithm,
    )


def all_to_all_out(
    input: torch.Tensor,
    group: Any = None,
    *,
    input_splits: Sequence[int] | None = None,
    output_splits: Sequence[int] | None = None,
    algorithm: str = "auto",
    out: torch.Tensor,
) -> torch.Tensor:
    """all_to_all into `out`, outside autograd; returns `out`."""
    _call(
        _all_to_all_out,
        input,
        *_names(group),
        input_splits=input_splits,
        output_splits=output_splits,
        algorithm=algorithm,
        out=out,
    )
    return out


def broadcast(
    input: torch.Tensor, root: int = 0, group: Any = None, *, algorithm: str = "auto"
) -> torch.Tensor:
    """The root's tensor, as a new one on every rank; `root` is a rank of the group.

    Other ranks' inputs give shape and type, which are the same everywhere. A copy is exact. The
    gradient is a reduce to the root.
    """
    return _call(_broadcast, input, root, *_names(group), algorithm=algorithm)


def broadcast_(
    input: torch.Tensor, root: int = 0, group: Any = None, *, algorithm: str = "auto"
) -> torch.Tensor:
    """broadcast in place, outside autograd; returns its argument."""
    _call(_broadcast_, input, root, *_names(group), algorithm=algorithm)
    return input


def reduce(
    input: torch.Tensor,
    root: int = 0,
    reduce_op: str = "sum",
    group: Any = None,
    *,
    algorithm: str = "auto",
) -> torch.Tensor:
    """The reduction over all ranks, on the root; a copy of their input on the others.

    The gradient of "sum" and "avg" is a broadcast of the root's; what the others got back is
    outside autograd.
    """
    return _call(_reduce, input, root, *_names(group, reduce_op), algorithm=algorithm)


def reduce_(
    input: torch.Tensor,
    root: int = 0,
    reduce_op: str = "sum",
    group: Any = None,
    *,
    algorithm: str = "auto",
) -> torch.Tensor:
    """reduce in place on the root, outside autograd; other ranks' tensors stay as they are."""
    _call(_reduce_, input, root, *_names(group, reduce_op), algorithm=algorithm)
    return input


def _flat(
    part: torch.Tensor, whole: torch.Tensor, written: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Both as vectors where `whole` is a stack of tensors like `part`; elsewhere as they are."""
    is_stack = part.dim() and whole.dim() == part.dim() + 1 and whole.shape[1:] == part.shape
    if is_stack and written.is_contiguous():
        return part.reshape(-1), whole.reshape(-1)
    return part, whole


def _names(group: Any, reduce_op: str | None = None) -> tuple[str, ...]:
    """The trailing positional arguments, without those at their defaults."""
    if group is None:
        return () if reduce_op is None or reduce_op == "sum" else (reduce_op,)
    name = group_name_of(group)
    return (name,) if reduce_op is None else (reduce_op, name)
