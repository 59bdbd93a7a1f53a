"""Bit-exact reference of an all-reduce: what every algorithm gives on every rank, in every run.

Works on bit patterns in numpy, independent of torch: 16-bit and 8-bit floats are widened to
float32, combined in rank order from rank 0's value, and rounded once. A NaN result is the type's
one canonical NaN.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class Type:
    """`bits` holds elements as they lie in memory, `acc` is the accumulator's type."""

    name: str
    bits: type[np.unsignedinteger]
    acc: type[np.generic]
    canonical_nan: int | None = None

    @property
    def is_float(self) -> bool:
        return self.canonical_nan is not None


TYPES = {
    t.name: t
    for t in (
        Type("float32", np.uint32, np.float32, 0x7FC00000),
        Type("float64", np.uint64, np.float64, 0x7FF8000000000000),
        Type("float16", np.uint16, np.float32, 0x7E00),
        Type("bfloat16", np.uint16, np.float32, 0x7FC0),
        Type("float8_e4m3fn", np.uint8, np.float32, 0x7F),
        Type("float8_e5m2", np.uint8, np.float32, 0x7F),
        Type("int8", np.uint8, np.int8),
        Type("uint8", np.uint8, np.uint8),
        Type("int32", np.uint32, np.int32),
        Type("int64", np.uint64, np.int64),
        Type("bool", np.uint8, np.uint8),
    )
}
FLOATS = tuple(t.name for t in TYPES.values() if t.is_float)
OPS = ("sum", "avg", "min", "max", "prod")


def _fp8_magnitudes(mantissa_bits: int, bias: int) -> NDArray[np.float32]:
    """Values of the codes 0..127 read as if every exponent were finite."""
    codes = np.arange(128)
    exponent, mantissa = codes >> mantissa_bits, codes & ((1 << mantissa_bits) - 1)
    fraction = mantissa / (1 << mantissa_bits)
    return np.where(
        exponent == 0,
        np.ldexp(fraction, 1 - bias),
        np.ldexp(1 + fraction, exponent - bias),
    ).astype(np.float32)


_FP8 = {"float8_e4m3fn": _fp8_magnitudes(3, 7), "float8_e5m2": _fp8_magnitudes(2, 15)}
_FIRST_NON_FINITE = {"float8_e4m3fn": 0x7F, "float8_e5m2": 0x7C}


def widen(name: str, bits: Array) -> Array:
    """Bit patterns to accumulator values; exact."""
    kind = TYPES[name]
    if name == "bfloat16":
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if name == "float16":
        return bits.view(np.float16).astype(np.float32)
    if name in _FP8:
        table = _FP8[name].copy()
        first = _FIRST_NON_FINITE[name]
        table[first:] = np.nan
        if name == "float8_e5m2":
            table[first] = np.inf
        magnitude = table[bits & np.uint8(0x7F)]
        return np.where(bits & np.uint8(0x80), -magnitude, magnitude)
    return bits.view(kind.acc)


def _round_fp8(name: str, values: Array) -> Array:
    """To nearest, ties to even, as torch's cast: e4m3fn overflows to NaN, e5m2 to infinity."""
    first = _FIRST_NON_FINITE[name]
    # One code beyond the largest finite value stands for everything that rounds past it.
    table = _FP8[name][: first + 1].astype(np.float64)
    midpoints = (table[:-1] + table[1:]) / 2
    magnitude = np.abs(values.astype(np.float64))
    below = np.searchsorted(midpoints, magnitude, side="left")
    at_tie = magnitude == midpoints[np.minimum(below, first - 1)]
    code = below + (at_tie & (below % 2 == 1))
    return (code | np.where(np.signbit(values), 0x80, 0)).astype(np.uint8)


def narrow(name: str, values: Array) -> Array:
    """Accumulator values to bit patterns with one rounding and canonical NaNs."""
    kind = TYPES[name]
    if not kind.is_float:
        return values.view(kind.bits)
    with np.errstate(all="ignore"):
        if name == "bfloat16":
            wide = values.view(np.uint32).astype(np.uint64)
            rounded = wide + np.uint64(0x7FFF) + ((wide >> np.uint64(16)) & np.uint64(1))
            bits: Array = (rounded >> np.uint64(16)).astype(np.uint16)
        elif name == "float16":
            bits = values.astype(np.float16).view(np.uint16)
        elif name in _FP8:
            bits = _round_fp8(name, values)
        else:
            bits = values.view(kind.bits)
    is_nan = np.isnan(values)
    if name == "float8_e4m3fn":
        is_nan |= (bits & np.uint8(0x7F)) == 0x7F
    return np.where(is_nan, kind.bits(kind.canonical_nan or 0), bits)


def _order_key(values: Array) -> Array:
    """Integers that order floats with -0 below +0; integers are their own key."""
    if values.dtype.kind != "f":
        return values
    signed = values.view(np.int32 if values.dtype == np.float32 else np.int64)
    lowest = np.iinfo(signed.dtype).min
    return np.where(signed < 0, lowest - signed - 1, signed)


def _extreme(op: str, a: Array, b: Array) -> Array:
    take_b = _order_key(b) < _order_key(a) if op == "min" else _order_key(b) > _order_key(a)
    result = np.where(take_b, b, a)
    if a.dtype.kind == "f":
        result = np.where(np.isnan(a) | np.isnan(b), a.dtype.type(np.nan), result)
    return result


def _truncating_divide(values: Array, divisor: int) -> Array:
    n = values.dtype.type(divisor)
    quotient = values // n
    return (quotient + ((values < 0) & (values % n != 0))).astype(values.dtype)


def all_reduce(name: str, op: str, stacked: Array) -> Array:
    """Bits of the result for bits `stacked[rank, element]`."""
    if name == "bool":
        if op == "avg":
            raise ValueError("avg of bool is an error")
        combine = np.bitwise_or if op in ("sum", "max") else np.bitwise_and
        return combine.reduce(stacked, axis=0)
    num_ranks = stacked.shape[0]
    with np.errstate(all="ignore"):
        acc = widen(name, stacked[0]).copy()
        for rank in range(1, num_ranks):
            value = widen(name, stacked[rank])
            if op in ("sum", "avg"):
                acc = acc + value
            elif op == "prod":
                acc = acc * value
            else:
                acc = _extreme(op, acc, value)
        if op == "avg":
            is_float = TYPES[name].is_float
            acc = (
                acc / acc.dtype.type(num_ranks) if is_float else _truncating_divide(acc, num_ranks)
            )
    return narrow(name, acc)


def special_bits(name: str) -> Array:
    """Patterns worth mixing: zeros, extremes, subnormals, infinities, NaNs of many payloads."""
    kind = TYPES[name]
    width = np.dtype(kind.bits).itemsize * 8
    if name == "bool":
        return np.array([0, 1], np.uint8)
    top = 1 << (width - 1)
    if not kind.is_float:
        return np.array([0, 1, 2, 3, top - 1, top, top + 1, 2 * top - 1, 2 * top - 2, 5], kind.bits)
    if width == 8:
        return np.arange(256).astype(np.uint8)
    mantissa = {"float64": 52, "float32": 23, "float16": 10, "bfloat16": 7}[name]
    infinity = (top - 1) >> mantissa << mantissa
    quiet = 1 << (mantissa - 1)
    one = {"float64": 1023, "float32": 127, "float16": 15, "bfloat16": 127}[name] << mantissa
    positive = [0, 1, 2, (1 << mantissa) - 1, 1 << mantissa, one, one + 1, infinity - 1, infinity]
    positive += [
        infinity | 1,
        infinity | quiet,
        infinity | quiet | 1,
        infinity | (quiet - 1),
        top - 1,
    ]
    return np.array([p | sign for p in positive for sign in (0, top)], np.uint64).astype(kind.bits)


def make_inputs(
    name: str, num_ranks: int, numel: int, seed: int, wild_share: float = 0.125
) -> Array:
    """Bits [rank, element]: values whose sum depends on the order, and some wild columns."""
    kind = TYPES[name]
    rng = np.random.default_rng([seed, num_ranks, *name.encode()])
    shape = (num_ranks, numel)
    specials = special_bits(name)
    wild = specials[rng.integers(0, len(specials), shape)]
    if name == "bool":
        # The share of ones varies by column, or `or` would be all ones with many ranks.
        return (rng.random(shape) < rng.random(numel) ** 2).astype(np.uint8)
    if kind.is_float:
        scale = 3.0 if np.dtype(kind.bits).itemsize < 4 else 12.0
        spread = np.exp2(rng.uniform(-scale, scale, shape))
        ordinary = narrow(name, (rng.standard_normal(shape) * spread).astype(kind.acc))
    else:
        ordinary = rng.integers(0, np.iinfo(kind.bits).max, shape, kind.bits, endpoint=True)
    return np.where(rng.random(numel) < wild_share, wild, ordinary)
