"""All-reduce, residual and RMS norm in one op, and the norm alone in the same order.

    s            = the sum over all ranks, rounded to the input's type
    residual_out = s + residual, rounded
    norm         = residual_out / sqrt(mean(residual_out ** 2) + eps) * (weight + weight_bias)

in float32, with one rounding at the end. The sum of squares has one fixed order (a balanced binary
tree over the row), so these ops give the same bits as all_reduce followed by add_rms_norm, for
every batch size, algorithm of llcoll's own and number of threads, on CPU and GPU. torch's adds
in another order and differs in the last bits. No gradients.

Shapes: input and residual [..., n], weight [n], all float32, float16 or bfloat16, of one type.
"""

from typing import Any

import torch

from . import _errors, _ops
from .communicator import group_name_of

ops: Any = torch.ops.llcoll


def _call(op: Any, *args: Any, **kwargs: Any) -> Any:
    if torch.compiler.is_compiling():
        return op(*args, **kwargs)
    try:
        return op(*args, **kwargs)
    except RuntimeError as error:
        raise _errors.converted(error) from None


def rms_norm(
    input: torch.Tensor, weight: torch.Tensor, eps: float, *, weight_bias: float = 0.0
) -> torch.Tensor:
    """The norm of each row, local. `weight_bias`: 1.0 for models that store weight - 1 (Gemma)."""
    return _call(ops.rms_norm.default, input, weight, eps, weight_bias=weight_bias)


def add_rms_norm(
    input: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    *,
    weight_bias: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(norm, residual_out) of input + residual, local."""
    return _call(ops.add_rms_norm.default, input, residual, weight, eps, weight_bias=weight_bias)


def all_reduce_rms_norm(
    input: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    group: Any = None,
    *,
    weight_bias: float = 0.0,
    algorithm: str = "auto",
) -> tuple[torch.Tensor, torch.Tensor]:
    """(norm, residual_out) of the sum of `input` over the group's ranks, plus `residual`.

    residual and weight are each rank's own; they should be the same everywhere. algorithm: as for
    all_reduce.
    """
    return _call(
        ops.all_reduce_rms_norm.default,
        input,
        residual,
        weight,
        eps,
        group_name_of(group),
        weight_bias=weight_bias,
        algorithm=algorithm,
    )


def all_reduce_rms_norm_fp8(
    input: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    eps: float,
    group: Any = None,
    *,
    weight_bias: float = 0.0,
    algorithm: str = "auto",
) -> tuple[torch.Tensor, torch.Tensor]:
    """(norm / scale as float8_e4m3fn, residual_out); `scale`: one float32 where the tensors are.

    Saturates at +-448. The norm is not rounded to the input's type in between.
    """
    return _call(
        ops.all_reduce_rms_norm_fp8.default,
        input,
        residual,
        weight,
        scale,
        eps,
        group_name_of(group),
        weight_bias=weight_bias,
        algorithm=algorithm,
    )


def all_reduce_rms_norm_dynamic_fp8(
    input: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    group: Any = None,
    *,
    weight_bias: float = 0.0,
    algorithm: str = "auto",
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(norm as float8_e4m3fn, residual_out, scales): each row by a scale of its own.

    scales: [..., 1] float32, the row's largest magnitude / 448, at least 1 / (448 * 512).
    """
    return _call(
        ops.all_reduce_rms_norm_dynamic_fp8.default,
        input,
        residual,
        weight,
        eps,
        group_name_of(group),
        weight_bias=weight_bias,
        algorithm=algorithm,
    )


def _like(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(x.shape)  # contiguous, whatever the input's strides


def _fp8_like(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(x.shape, dtype=torch.float8_e4m3fn)


@torch.library.register_fake("llcoll::rms_norm")
def _fake_rms_norm(
    input: torch.Tensor, weight: torch.Tensor, eps: float, *, weight_bias: float = 0.0
) -> torch.Tensor:
    return _like(input)


@torch.library.register_fake("llcoll::add_rms_norm")
def _fake_add_rms_norm(
    input: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    *,
    weight_bias: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    return _like(input), _like(input)


@torch.library.register_fake("llcoll::all_reduce_rms_norm")
def _fake_fused(
    input: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    group_name: str = "",
    *,
    weight_bias: float = 0.0,
    algorithm: str = "auto",
) -> tuple[torch.Tensor, torch.Tensor]:
    return _like(input), _like(input)


@torch.library.register_fake("llcoll::all_reduce_rms_norm_fp8")
def _fake_fused_fp8(
    input: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    eps: float,
    group_name: str = "",
    *,
    weight_bias: float = 0.0,
    algorithm: str = "auto",
) -> tuple[torch.Tensor, torch.Tensor]:
    return _fp8_like(input), _like(input)


@torch.library.register_fake("llcoll::all_reduce_rms_norm_dynamic_fp8")
def _fake_fused_dynamic_fp8(
    input: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    group_name: str = "",
    *,
    weight_bias: float = 0.0,
    algorithm: str = "auto",
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    scales = input.new_empty((*input.shape[:-1], 1), dtype=torch.float32)
    return _fp8_like(input), _like(input), scales


assert _ops.ops is ops  # the shared objects are loaded: the schemas are there
