"""llcoll: low-latency collectives for one scale-up domain, as torch.ops.llcoll.*."""

import os
from pathlib import Path
from typing import Any

import torch

from . import _C, _ops, backend, compile
from ._errors import (
    CollectiveAborted,
    CollectiveMismatch,
    CollectiveTimeout,
    LlcollError,
    converted,
)
from .collective_lists import all_gather_list, all_to_all_list, reduce_scatter_list
from .collectives import (
    all_gather,
    all_gather_into_tensor,
    all_gather_out,
    all_to_all,
    all_to_all_out,
    broadcast,
    broadcast_,
    reduce,
    reduce_,
    reduce_scatter,
    reduce_scatter_out,
    reduce_scatter_tensor,
)
from .communicator import Communicator, find, group_name_of, init, shutdown
from .fused import (
    add_rms_norm,
    all_reduce_rms_norm,
    all_reduce_rms_norm_dynamic_fp8,
    all_reduce_rms_norm_fp8,
    rms_norm,
)
from .memory import empty
from .plans import plan

__version__ = "0.1.0"

__all__ = [
    "CollectiveAborted",
    "CollectiveMismatch",
    "CollectiveTimeout",
    "Communicator",
    "LlcollError",
    "abort",
    "add_rms_norm",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_list",
    "all_gather_out",
    "all_reduce",
    "all_reduce_",
    "all_reduce_out",
    "all_reduce_rms_norm",
    "all_reduce_rms_norm_dynamic_fp8",
    "all_reduce_rms_norm_fp8",
    "all_to_all",
    "all_to_all_list",
    "all_to_all_out",
    "backend",
    "barrier",
    "broadcast",
    "broadcast_",
    "check",
    "compile",
    "dump",
    "empty",
    "include_path",
    "init",
    "library_path",
    "plan",
    "reduce",
    "reduce_",
    "reduce_scatter",
    "reduce_scatter_list",
    "reduce_scatter_out",
    "reduce_scatter_tensor",
    "rms_norm",
    "shutdown",
]

_all_reduce = _ops.ops.all_reduce.default
_all_reduce_ = _ops.ops.all_reduce_.default
_all_reduce_out = _ops.ops.all_reduce_out.default
# Plain CPU tensors around the dispatcher; False where only the op will do.
_direct = _C.all_reduce
_is_compiling = torch.compiler.is_compiling
# True in Dynamo's eyes, so that it never meets what follows; cheaper to call than is_compiling.
_is_tracing = torch.compiler.is_dynamo_compiling


def all_reduce(
    input: torch.Tensor, reduce_op: str = "sum", group: Any = None, algorithm: str = "auto"
) -> torch.Tensor:
    """The reduction over all ranks of the group, as a new contiguous tensor.

    reduce_op: "sum", "avg", "min", "max" or "prod". algorithm: a name of the table in the README,
    or "auto". Gradients flow through "sum" and "avg".
    """
    if _is_compiling():
        return _all_reduce(input, reduce_op, group_name_of(group), algorithm=algorithm)
    try:
        # Each argument that an op is given costs 0.25 us.
        if group is None and reduce_op == "sum" and algorithm == "auto":
            return _all_reduce(input)
        return _all_reduce(input, reduce_op, group_name_of(group), algorithm=algorithm)
    except RuntimeError as error:
        raise converted(error) from None


def all_reduce_(
    input: torch.Tensor, reduce_op: str = "sum", group: Any = None, algorithm: str = "auto"
) -> torch.Tensor:
    """all_reduce in place, outside autograd; returns its argument."""
    if _is_tracing():
        _all_reduce_(input, reduce_op, group_name_of(group), algorithm=algorithm)
        return input
    name = None if group is None else group_name_of(group)
    if _direct(input, reduce_op, name, algorithm, input):
        return input
    try:
        if group is None and reduce_op == "sum" and algorithm == "auto":
            _all_reduce_(input)
        else:
            _all_reduce_(input, reduce_op, group_name_of(group), algorithm=algorithm)
        return input
    except RuntimeError as error:
        raise converted(error) from None


def all_reduce_out(
    input: torch.Tensor,
    reduce_op: str = "sum",
    group: Any = None,
    algorithm: str = "auto",
    *,
    out: torch.Tensor,
) -> torch.Tensor:
    """all_reduce into `out`, outside autograd; returns `out`."""
    if _is_tracing():
        _all_reduce_out(input, reduce_op, group_name_of(group), algorithm=algorithm, out=out)
        return out
    name = None if group is None else group_name_of(group)
    if _direct(input, reduce_op, name, algorithm, out):
        return out
    try:
        _all_reduce_out(input, reduce_op, group_name_of(group), algorithm=algorithm, out=out)
        return out
    except RuntimeError as error:
        raise converted(error) from None


def barrier(group: Any = None) -> None:
    """Returns (CUDA: lets the stream go on) once every rank of the group has called it."""
    if _is_compiling():
        _ops.ops.barrier.default(group_name_of(group))
        return
    try:
        _ops.ops.barrier.default(group_name_of(group))
    except RuntimeError as error:
        raise converted(error) from None


def check(group: Any = None) -> None:
    """Raises what went wrong since the last call: loops that only replay CUDA graphs need it."""
    find(group).check()


def abort(group: Any = None, reason: str = "llcoll.abort was called") -> None:
    """Ends all waits of the group's communicator on every rank; later calls raise."""
    find(group).abort(reason)


def dump(group: Any = None, path: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """The group's flight record: the last 256 calls of this rank (docs/failures.md has the fields).

    Waits for nobody, so it may be called from another thread while a call hangs. path: a file to
    write it to as well, or a folder, where the file gets a name with the rank in it. Of all ranks'
    files, `python -m llcoll.diagnose FILES` names the first call where the ranks differ.
    """
    return find(group).dump(path)


def include_path() -> str:
    """The folder of the public headers, for kernels of your own."""
    here = Path(__file__).resolve().parent
    installed = here / "include"
    # A development install has them where they are written.
    return str(installed if installed.is_dir() else here.parents[1] / "csrc" / "include")


def library_path() -> str:
    """The folder of libllcoll.so, the C interface (docs/c-api.md), pkg-config and CMake files."""
    return str(Path(__file__).parent / "lib")
