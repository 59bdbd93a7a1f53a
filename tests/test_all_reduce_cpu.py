"""All-reduce, bit for bit: every algorithm, type, operator, size and number of ranks."""

from __future__ import annotations

import random

import numpy as np
import pytest
import reference
from cases import (
    EXACT,
    LARGE_SIZES,
    SENTINEL,
    SMALL_SIZES,
    WORLDS,
    Case,
    Data,
    algorithms_for,
    check,
    grid,
    shared_data,
)
from harness import DEVICE, pool
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

TYPES = tuple(reference.TYPES)
NUMEL = 20_000
HALF_WIDTH = ("bfloat16", "float16")
if DEVICE == "cuda":
    WORLDS = tuple(world for world in WORLDS if world <= 8)  # what a loopback run can hold
worlds = pytest.mark.parametrize(
    "world", [pytest.param(w, marks=pytest.mark.slow if w > 8 else ()) for w in WORLDS]
)
few_worlds = pytest.mark.parametrize("world", [w for w in WORLDS if w in (2, 3, 4, 8)])


@worlds
@pytest.mark.parametrize("dtype", TYPES)
def test_every_combination(world: int, dtype: str) -> None:
    """Layouts and entry points vary from call to call and from rank to rank."""
    cases = grid(NUMEL, SMALL_SIZES, [dtype], seed=world, repeats=2 if world < 6 else 1)
    check(pool(world), shared_data(world, NUMEL), cases)


@worlds
def test_middle_size(world: int) -> None:
    numel = 65537 + 100
    types = TYPES if world < 6 else ("float32", "bfloat16", "int8")
    ops = reference.OPS if world < 6 else ("sum", "max")
    with Data(world, numel, dtypes=types, ops=ops) as data:
        check(pool(world), data, grid(numel, [65537], types, ops=ops))


@few_worlds
def test_large_sizes(world: int) -> None:
    numel = LARGE_SIZES[-1] + 100
    types = ("float32", "bfloat16", "int64") if world < 8 else ("bfloat16",)
    with Data(world, numel, dtypes=types, ops=["sum"]) as data:
        check(pool(world), data, grid(numel, LARGE_SIZES[1:], types, ops=["sum"]), timeout=200)


@worlds
def test_mixed_types_and_algorithms_with_a_slow_rank(world: int) -> None:
    cases = grid(NUMEL, [1, 9, 33, 1024, 8195], TYPES, ops=["sum", "max"], seed=100 + world)
    cases = cases[: 600 if world < 6 else 300]
    check(pool(world), shared_data(world, NUMEL), cases, slow_rank=world - 1)
    check(pool(world), shared_data(world, NUMEL), cases[:200], slow_rank=0)


@worlds
def test_special_values(world: int) -> None:
    """NaNs of every payload, the sentinel's own bits, zeros, infinities, subnormals, extremes."""
    numel = 9000
    with Data(world, numel, wild_share=1.0, seed=1) as data:
        sizes = [1, 9, 33, 1024, 8195] if world < 6 else [9, 1024]
        check(pool(world), data, grid(numel, sizes, TYPES, seed=1))


@worlds
def test_inputs_that_are_nothing_but_sentinels(world: int) -> None:
    """A receiver that took the data for an empty slot would wait for ever."""
    numel = 8195
    kinds = [reference.TYPES[name] for name in reference.FLOATS]
    ones = {k.name: np.full((world, numel), np.iinfo(k.bits).max, k.bits) for k in kinds}
    with Data(world, numel, dtypes=reference.FLOATS, inputs=ones) as data:
        sizes = [1, 2, 7, 1024, 8195]
        check(pool(world), data, grid(numel, sizes, reference.FLOATS, ops=["sum", "max"]))
    # float64 whose halves are all ones, and narrow types where single elements of a word are.
    rng = np.random.default_rng(3)
    mixed = {}
    for kind in kinds:
        halves = np.full((world, numel), np.iinfo(kind.bits).max, kind.bits)
        if kind.name == "float64":
            low = np.uint64(0x3FF0_0000_FFFF_FFFF)
            halves = np.where(
                rng.random((world, numel)) < 0.5, low, np.uint64(0xFFFF_FFFF_0000_0001)
            )
        else:
            halves[rng.random((world, numel)) < 0.5] = 0
        mixed[kind.name] = halves
    with Data(world, numel, dtypes=reference.FLOATS, inputs=mixed) as data:
        check(pool(world), data, grid(numel, [1, 33, 8195], reference.FLOATS, ops=["sum", "min"]))


@few_worlds
def test_flush_to_zero_in_one_rank_changes_nothing(world: int) -> None:
    """Subnormal inputs and results everywhere, and the mode is the caller's again afterwards."""
    numel, inputs = 9000, {}
    rng = np.random.default_rng(5)
    for name in reference.FLOATS:
        bits = reference.TYPES[name].bits
        mantissa = {
            "float64": 52,
            "float32": 23,
            "float16": 10,
            "bfloat16": 7,
            "float8_e4m3fn": 3,
            "float8_e5m2": 2,
        }
        small = rng.integers(0, 1 << (mantissa[name] + 1), (world, numel), bits)
        sign = rng.integers(0, 2, (world, numel), bits) << bits(8 * np.dtype(bits).itemsize - 1)
        inputs[name] = (small | sign).astype(bits)
    with Data(world, numel, dtypes=reference.FLOATS, inputs=inputs) as data:
        cases = grid(numel, [1, 9, 33, 1024, 8195], reference.FLOATS, seed=5)
        check(pool(world), data, cases, flush_denormal_rank=world - 1)
        check(pool(world), data, cases[::4], flush_denormal_rank=0)


@few_worlds
def test_short_after_long(world: int) -> None:
    """What a long message left in the slots must not be taken for a later short one's data."""
    rng = random.Random(world)
    data = shared_data(world, NUMEL)
    cases: list[Case] = []
    for dtype in ("float32", "bfloat16", "float64", "int8"):
        for algorithm in algorithms_for(dtype):
            for long in (8192, 16384 + 5):
                for short in (1, 3, 17):
                    sizes = [long, short, short, long, short, short, short, long, long, short]
                    cases += [
                        (algorithm, dtype, "sum", n, rng.randint(0, NUMEL - n)) for n in sizes
                    ]
    check(pool(world), data, cases, slow_rank=0 if world % 2 else world - 1)


@pytest.mark.parametrize("world", [w for w in WORLDS if w in (2, 3, 5, 8)])
def test_messages_larger_than_the_scratch(world: int) -> None:
    """The last chunk leaves slots idle; the next call must still find them in order."""
    numel = 300_000 if world < 5 else 100_000
    types = ("float32", "bfloat16", "int8", "float64") if world < 5 else ("float32",)
    sizes = [1, 1000, 8195, 65537, numel - 100, 65536]
    with Data(world, numel, dtypes=types, ops=["sum"]) as data:
        cases = grid(numel, sizes, types, ops=["sum"], seed=9, repeats=2)
        check(
            pool(world),
            data,
            cases,
            options={"scratch_bytes": (world + 1) * 64 * 1024},
            slow_rank=1,
            timeout=200,
        )


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("wrap", [31, 32, 63])
def test_epochs_that_wrap(world: int, wrap: int) -> None:
    """Each protocol crosses the wrap a few calls after the start; no buffer may lose its turn.

    Counters have 64 bits, so 2^64 is out of reach, and LL counts on it. Narrow flags wrap
    at 2^32.
    """
    data = shared_data(world, NUMEL)
    rng = random.Random(wrap)
    cases: list[Case] = []
    for dtype in ("float32", "int32"):
        for algorithm in algorithms_for(dtype):
            sizes = [rng.choice([1, 8, 33, 1024, 8195]) for _ in range(14)]
            cases += [(algorithm, dtype, "sum", n, rng.randint(0, NUMEL - n)) for n in sizes]
    for below in (2, 3, 5):
        options = {"first_epoch": (1 << wrap) - below}
        check(pool(world), data, cases, options=options, slow_rank=world - 1)


# Sequences of any calls on any data: what no list above thought of.
calls = st.tuples(
    st.sampled_from(TYPES),
    st.integers(0, 6),
    st.sampled_from(reference.OPS),
    st.one_of(st.sampled_from(SMALL_SIZES), st.integers(0, 9000)),
    st.integers(0, NUMEL - 9000),
)


@pytest.mark.parametrize("world", [2, 3, 4])
def test_random_sequences(world: int) -> None:
    @settings(
        max_examples=25, deadline=None, database=None, derandomize=True,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(st.lists(calls, min_size=1, max_size=40), st.integers(-1, world - 1))
    def run(sequence: list[tuple[str, int, str, int, int]], slow_rank: int) -> None:
        cases = [
            (algorithms_for(dtype)[pick % len(algorithms_for(dtype))], dtype, op, numel, offset)
            for dtype, pick, op, numel, offset in sequence
            if (dtype, op) != ("bool", "avg")
        ]
        check(pool(world), shared_data(world, NUMEL), cases, slow_rank=slow_rank)

    run()


@few_worlds
def test_the_torch_fallback_is_close(world: int) -> None:
    results = pool(world).results("jobs_shapes", "torch_fallback")
    assert [wrong for rank in results for wrong in rank] == []


@worlds
def test_shapes(world: int) -> None:
    results = pool(world).results("jobs_shapes", "shapes", EXACT + SENTINEL)
    assert [wrong for rank in results for wrong in rank] == []


@pytest.mark.parametrize("world", [4])
def test_sub_groups_with_equal_random_seeds(world: int) -> None:
    """Two tensor-parallel pairs inside data parallelism, calls on all three groups interleaved."""
    results = pool(world).results("jobs_shapes", "tensor_inside_data_parallel", timeout=120)
    assert [wrong for rank in results for wrong in rank] == []


@pytest.mark.parametrize("world", [3])
def test_a_sub_group_leaves_others_out(world: int) -> None:
    results = pool(world).results("jobs_shapes", "pair_and_outsider")
    assert [wrong for rank in results for wrong in rank] == []


@few_worlds
def test_plans_give_the_same_bits(world: int) -> None:
    results = pool(world).results(
        "jobs_shapes", "plans", shared_data(world, NUMEL).directory, timeout=120
    )
    assert [wrong for rank in results for wrong in rank] == []
