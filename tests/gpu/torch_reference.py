"""The reference of tests/reference.py in torch, for pools of inputs on the GPU.

Every rank regenerates the inputs of all ranks from a seed, so nothing has to be gathered. One torch
operation an element-wise step: nothing is contracted. A test compares it with the numpy reference.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import reference

BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
NUMPY_BITS = {1: np.uint8, 2: np.int16, 4: np.int32, 8: np.int64}
FLOATS = reference.FLOATS


def dtype_of(name: str) -> torch.dtype:
    return getattr(torch, name)


def bits(x: torch.Tensor) -> torch.Tensor:
    """The same memory as integers; elements that are compared or copied need no arithmetic."""
    return x.view(BITS[x.element_size()])


def _accumulator(dtype: torch.dtype) -> torch.dtype:
    if dtype.is_floating_point:
        return torch.float64 if dtype == torch.float64 else torch.float32
    return torch.uint8 if dtype == torch.bool else dtype


def _order_key(x: torch.Tensor) -> torch.Tensor:
    if not x.dtype.is_floating_point:
        return x
    key = bits(x)
    return torch.where(key < 0, torch.iinfo(key.dtype).min - key - 1, key)


def _extreme(op: str, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    key_a, key_b = _order_key(a), _order_key(b)
    result = torch.where(key_b < key_a if op == "min" else key_b > key_a, b, a)
    if a.dtype.is_floating_point:
        result = torch.where(torch.isnan(a) | torch.isnan(b), torch.full_like(a, torch.nan), result)
    return result


def _reduce_bool(op: str, inputs: list[torch.Tensor]) -> torch.Tensor:
    acc = bits(inputs[0]).clone()
    for value in inputs[1:]:
        acc = acc | bits(value) if op in ("sum", "max") else acc & bits(value)
    return acc


def all_reduce(op: str, inputs: list[torch.Tensor]) -> torch.Tensor:
    """Bits of the result of `inputs[rank]`."""
    dtype = inputs[0].dtype
    if dtype == torch.bool:
        return _reduce_bool(op, inputs)
    wide = _accumulator(dtype)
    acc = inputs[0].to(wide)
    for narrow in inputs[1:]:
        value = narrow.to(wide)
        if op in ("sum", "avg"):
            acc = acc + value
        elif op == "prod":
            acc = acc * value
        else:
            acc = _extreme(op, acc, value)
    if op == "avg":
        # A scalar divisor would become a multiplication by its inverse on CUDA.
        divisor = torch.full_like(acc, len(inputs))
        acc = (
            acc / divisor
            if wide.is_floating_point
            else torch.div(acc, divisor, rounding_mode="trunc")
        )
    result = bits(acc.to(dtype)).clone()
    if dtype.is_floating_point:
        name = str(dtype).removeprefix("torch.")
        is_nan = torch.isnan(acc)
        if name == "float8_e4m3fn":
            is_nan |= (result & 0x7F) == 0x7F
        result[is_nan] = reference.TYPES[name].canonical_nan or 0
    return result


def make_inputs(
    name: str, num_ranks: int, numel: int, seed: int, device: torch.device | str
) -> list[torch.Tensor]:
    """One tensor a rank: values whose sum depends on the order, and an eighth of wild columns."""
    dtype = dtype_of(name)
    item_bytes = dtype.itemsize
    generator = torch.Generator(device).manual_seed(seed * 1009 + sum(name.encode()))

    def random(low: int, high: int, kind: torch.dtype, size: int = numel) -> torch.Tensor:
        return torch.randint(low, high, (size,), generator=generator, dtype=kind, device=device)

    def uniform() -> torch.Tensor:
        return torch.rand(numel, generator=generator, device=device)

    if dtype == torch.bool:
        share = uniform() ** 2
        return [uniform() < share for _ in range(num_ranks)]
    specials = torch.from_numpy(
        reference.special_bits(name).view(NUMPY_BITS[item_bytes]).copy()
    ).to(device)
    wild = uniform() < 0.125
    scale = 3.0 if item_bytes < 4 else 12.0
    inputs = []
    for _ in range(num_ranks):
        if dtype.is_floating_point:
            wide = _accumulator(dtype)
            value = torch.randn(numel, generator=generator, device=device, dtype=wide)
            value = value * torch.exp2((uniform().to(wide) * 2 - 1) * scale)
            ordinary = bits(value.to(dtype))
        else:
            ordinary = bits(random(0, 256, torch.uint8, numel * item_bytes).view(dtype))
        picked = specials[random(0, len(specials), torch.int64)]
        inputs.append(torch.where(wild, picked, ordinary).view(dtype))
    return inputs
