"""Loads the shared objects, which register torch.ops.llcoll.*; fake kernels and gradients."""

import importlib
from typing import Any

import torch
import torch.fx

from . import _C, _errors

CUDA_PROBLEM: str | None = None
"""Why there is no CUDA backend, in words; None where there is one."""

_cuda: Any = None
if torch.version.cuda is None:
    CUDA_PROBLEM = f"torch {torch.__version__} has no CUDA"
else:
    try:
        _cuda = importlib.import_module("llcoll._cuda")

        _cuda.set_error_classes(*_errors.CLASSES)
        _C.use_cuda_hooks(_cuda.hooks_capsule())
        _cuda.use_deferred_error(_C.deferred_error_capsule())
    except ImportError as error:
        CUDA_PROBLEM = f"llcoll was built without CUDA, or its library does not load: {error}"


def backend(device_type: str) -> Any:
    """The extension module that serves a device type."""
    if device_type == "cpu":
        return _C
    if device_type == "cuda" and _cuda is not None:
        return _cuda
    reason = CUDA_PROBLEM if device_type == "cuda" else "llcoll serves cpu and cuda"
    raise _errors.LlcollError(f"no backend for device type {device_type!r}: {reason}")


def backends() -> list:
    return [_C] if _cuda is None else [_C, _cuda]


def _set_front() -> bool:
    """Lets the front go around the dispatcher; False where this torch lacks what that takes."""
    try:
        watches = (
            torch._C._len_torch_dispatch_stack,
            torch._C._len_torch_function_stack,
            torch._C._get_tracing_state,
            torch._C._autograd._profiler_enabled,
        )
        capsule = torch.Tensor.__dlpack_c_exchange_api__
    except AttributeError:
        return False
    return _C.set_front(capsule, torch.Tensor, watches)


HAS_FRONT = _set_front()

ops: Any = torch.ops.llcoll

# Autograd needs nothing from these: without a kernel there torch would run its generic fallback,
# which looks at every argument. all_reduce itself has a C++ Autograd kernel.
_library = torch.library.Library("llcoll", "IMPL")
for _name in ("_all_reduce", "all_reduce_", "all_reduce_out", "_plan_create"):
    _library.impl(_name, torch.library.fallthrough_kernel, "Autograd")

# A graph must keep it, although nothing uses a result of it.
torch.fx.node.has_side_effect(ops.barrier.default)


def _fake_functional(
    input: torch.Tensor, reduce_op: str = "sum", group_name: str = "", algorithm: str = "auto"
) -> torch.Tensor:
    return input.new_empty(input.shape)  # contiguous, whatever the input's strides


def _fake_numbered(
    input: torch.Tensor, reduce_op: int, algorithm: int, group_hash: int
) -> torch.Tensor:
    return input.new_empty(input.shape)


torch.library.register_fake("llcoll::all_reduce", _fake_functional)
torch.library.register_fake("llcoll::_all_reduce", _fake_numbered)
torch.library.register_fake("llcoll::_all_reduce_grad", _fake_numbered)


@torch.library.register_fake("llcoll::all_reduce_")
def _fake_inplace(
    input: torch.Tensor, reduce_op: str = "sum", group_name: str = "", *, algorithm: str = "auto"
) -> None:
    return None


@torch.library.register_fake("llcoll::all_reduce_out")
def _fake_out(
    input: torch.Tensor,
    reduce_op: str = "sum",
    group_name: str = "",
    *,
    algorithm: str = "auto",
    out: torch.Tensor,
) -> None:
    # An `out` on the meta device comes here with a real input: it would be lost silently.
    for what, mine, wanted in (
        ("device", out.device, input.device),
        ("dtype", out.dtype, input.dtype),
        ("shape", list(out.shape), list(input.shape)),
    ):
        if mine != wanted:
            raise RuntimeError(f"LlcollError: out has {what} {mine}, input has {wanted}")


@torch.library.register_fake("llcoll::barrier")
def _fake_barrier(group_name: str = "") -> None:
    return None


_REDUCE_OPS = _C.reduce_ops()


def _setup_context(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    _, ctx.reduce_op, ctx.algorithm, ctx.group_hash = inputs


def _backward(ctx, gradient):  # type: ignore[no-untyped-def]
    # Every rank's loss depends on every rank's input, so the gradient is reduced the same way.
    op = _REDUCE_OPS[ctx.reduce_op]
    if op not in ("sum", "avg"):
        raise _errors.LlcollError(
            f"all_reduce with reduce_op {op!r} has no gradient; only 'sum' and 'avg' do"
        )
    # A second derivative needs the op with a gradient.
    reduce = ops._all_reduce_grad if torch.is_grad_enabled() else ops._all_reduce
    reduced = reduce.default(gradient, ctx.reduce_op, ctx.algorithm, ctx.group_hash)
    return reduced, None, None, None


torch.library.register_autograd("llcoll::_all_reduce_grad", _backward, setup_context=_setup_context)
