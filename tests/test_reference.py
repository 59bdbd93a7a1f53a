"""The reference itself, against torch's casts and against values worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
import reference
import torch

CASTS = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")


def as_float32(bits: list[int]) -> torch.Tensor:
    return torch.from_numpy(np.array(bits, np.uint32).view(np.float32))


def bits_of(tensor: torch.Tensor) -> np.ndarray:
    width = tensor.element_size()
    integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[width]
    return tensor.view(integer).numpy().view(f"u{width}")


@pytest.mark.parametrize("name", CASTS)
def test_widening_is_torchs(name: str) -> None:
    dtype = getattr(torch, name)
    kind = reference.TYPES[name]
    every = np.arange(1 << (8 * np.dtype(kind.bits).itemsize)).astype(kind.bits)
    signed = every.view(f"i{every.itemsize}")
    theirs = torch.from_numpy(signed).view(dtype).to(torch.float32).numpy()
    ours = reference.widen(name, every)
    np.testing.assert_array_equal(np.isnan(ours), np.isnan(theirs))
    finite = ~np.isnan(theirs)
    np.testing.assert_array_equal(ours[finite].view(np.uint32), theirs[finite].view(np.uint32))


@pytest.mark.parametrize("name", CASTS)
def test_rounding_is_torchs(name: str) -> None:
    rng = np.random.default_rng(1)
    patterns = rng.integers(0, 1 << 32, 400_000, np.uint32)
    # Around every value of the type and every tie between two of them.
    kind = reference.TYPES[name]
    every = reference.widen(
        name, np.arange(1 << (8 * np.dtype(kind.bits).itemsize)).astype(kind.bits)
    )
    finite = np.sort(every[np.isfinite(every)])
    ties = ((finite[:-1].astype(np.float64) + finite[1:]) / 2).astype(np.float32)
    edges = np.concatenate(
        [finite, ties, np.array([448, 464, 480, 65519, 65520, 57344, 61440], np.float32)]
    )
    near = [np.nextafter(edges, np.float32(d)) for d in (np.inf, -np.inf)]
    values = np.concatenate([patterns.view(np.float32), edges, *near])
    theirs = bits_of(torch.from_numpy(values).to(getattr(torch, name)))
    ours = reference.narrow(name, values)
    is_nan = np.isnan(reference.widen(name, theirs))
    np.testing.assert_array_equal(ours[~is_nan], theirs[~is_nan])
    assert (ours[is_nan] == reference.TYPES[name].canonical_nan).all()


@pytest.mark.parametrize("name", list(reference.TYPES))
@pytest.mark.parametrize("op", reference.OPS)
def test_two_ranks_against_torch(name: str, op: str) -> None:
    if name == "bool" and op == "avg":
        pytest.skip("avg of bool is an error")
    inputs = reference.make_inputs(name, 2, 5000, 7)
    ours = reference.all_reduce(name, op, inputs)
    dtype = getattr(torch, name)
    a, b = (torch.from_numpy(x.view(f"i{x.itemsize}")).view(dtype) for x in inputs)
    if reference.TYPES[name].is_float and name != "float64":
        a, b = a.float(), b.float()
    if op == "sum":
        result = a | b if name == "bool" else a + b
    elif op == "prod":
        result = a & b if name == "bool" else a * b
    elif op == "avg":
        result = (
            (a + b) / 2 if a.is_floating_point() else torch.div(a + b, 2, rounding_mode="trunc")
        )
    else:
        result = torch.minimum(a, b) if op == "min" else torch.maximum(a, b)
    theirs = bits_of(result.to(dtype))
    if not reference.TYPES[name].is_float:
        np.testing.assert_array_equal(ours, theirs)
        return
    values = reference.widen(name, theirs)
    either = ~np.isnan(values)
    if op in ("min", "max"):
        either &= values != 0  # torch does not order the zeros
    np.testing.assert_array_equal(ours[either], theirs[either])
    nan = np.isnan(values)
    assert (ours[nan] == reference.TYPES[name].canonical_nan).all()


def test_rules_by_hand() -> None:
    f32 = np.uint32
    zeros = np.array([[0x80000000, 0x80000000, 0], [0, 0x80000000, 0x80000000]], f32)
    assert list(reference.all_reduce("float32", "sum", zeros)) == [0, 0x80000000, 0]
    assert list(reference.all_reduce("float32", "min", zeros)) == [
        0x80000000,
        0x80000000,
        0x80000000,
    ]
    assert list(reference.all_reduce("float32", "max", zeros)) == [0, 0x80000000, 0]
    odd_nans = np.array([[0xFFFFFFFF, 0x7F800001, 0x3F800000, 0x7F800000]], f32)
    for op in reference.OPS:  # one rank follows the same rules
        assert list(reference.all_reduce("float32", op, odd_nans)) == [
            0x7FC00000, 0x7FC00000, 0x3F800000, 0x7F800000,
        ]  # fmt: skip
    against = np.array([[0xFF800000] * 4], f32)
    total = reference.all_reduce("float32", "sum", np.concatenate([odd_nans, against]))
    assert list(total) == [0x7FC00000, 0x7FC00000, 0xFF800000, 0x7FC00000]
    subnormals = np.array([[1, 0x007FFFFF], [1, 1]], f32)
    assert list(reference.all_reduce("float32", "sum", subnormals)) == [2, 0x00800000]
    int8 = np.array([[127, -128, -7, 100], [1, -1, 0, 100], [0, 0, 0, 100]], np.int8)
    assert list(reference.all_reduce("int8", "sum", int8.view(np.uint8)).view(np.int8)) == [
        -128,
        127,
        -7,
        44,
    ]
    assert list(reference.all_reduce("int8", "avg", int8.view(np.uint8)).view(np.int8)) == [
        -42,
        42,
        -2,
        14,
    ]
    assert list(reference.all_reduce("int8", "prod", int8[:2].view(np.uint8)).view(np.int8)) == [
        127,
        -128,
        0,
        16,
    ]
    # Rank order shows: (2^24 + 1) - 2^24 is 0 in float32, 2^24 - 2^24 + 1 is 1.
    big = np.array([[2.0**24, 2.0**24], [1, -(2.0**24)], [-(2.0**24), 1]], np.float32)
    assert list(reference.all_reduce("float32", "sum", big.view(f32)).view(np.float32)) == [0, 1]
    # One rounding: bfloat16 partial sums would lose both addends.
    parts = reference.narrow("bfloat16", np.array([[256.0], [1.0], [1.0]], np.float32))
    assert reference.widen("bfloat16", reference.all_reduce("bfloat16", "sum", parts))[0] == 258
    huge = np.array([[0x7E, 0xFE], [0x7E, 0xFE]], np.uint8)
    assert list(reference.all_reduce("float8_e4m3fn", "sum", huge)) == [0x7F, 0x7F]
    huge5 = np.array([[0x7B, 0xFB], [0x7B, 0xFB]], np.uint8)
    assert list(reference.all_reduce("float8_e5m2", "sum", huge5)) == [0x7C, 0xFC]
    with pytest.raises(ValueError, match="bool"):
        reference.all_reduce("bool", "avg", np.zeros((2, 1), np.uint8))
