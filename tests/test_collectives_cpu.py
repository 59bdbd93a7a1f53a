"""The collectives of one exchange, bit for bit: every one, protocol, type, size and split."""

from __future__ import annotations

import random
from itertools import count
from typing import Any

import pytest
import reference
from cases import LARGE_SIZES, SMALL_SIZES, Data, ops_for, shared_data
from harness import DEVICE, Ranks, pool

WORLDS = (1, 2, 3, 4, 5, 7, 8)
NUMEL = 20_000
TYPES = tuple(reference.TYPES)
KINDS = ("all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce")
REDUCING = ("reduce_scatter", "reduce")
COPY_ALGORITHMS = ("one_shot_ll", "one_shot_flag", "auto")
worlds = pytest.mark.parametrize("world", WORLDS)
few_worlds = pytest.mark.parametrize("world", [2, 3, 4, 8])
_names = count()

Call = tuple[Any, ...]


def algorithms_for(kind: str, dtype: str) -> tuple[str, ...]:
    by_sentinel = kind in REDUCING and dtype in reference.FLOATS
    return (*COPY_ALGORITHMS, "one_shot_sentinel") if by_sentinel else COPY_ALGORITHMS


def split(rng: random.Random, total: int, parts: int) -> list[int]:
    """A random split; often with empty parts, sometimes all in one."""
    way = rng.randrange(4)
    if way == 0:
        sizes = [0] * parts
        sizes[rng.randrange(parts)] = total
        return sizes
    cuts = sorted(rng.randint(0, total) for _ in range(parts - 1))
    sizes = [b - a for a, b in zip([0, *cuts], [*cuts, total], strict=True)]
    if way == 1 and parts > 1:
        sizes[rng.randrange(parts)] = 0
    return sizes


def make_call(
    rng: random.Random,
    kind: str,
    algorithm: str,
    dtype: str,
    op: str,
    size: int,
    world: int,
    numel: int,
) -> Call:
    """`size`: elements of the whole message, or of an average part times ranks, about."""
    width = rng.choice((0, 0, 1, 2, 3, 8))
    unit = max(width, 1)
    total = min(size, numel - 200) // unit
    root = rng.randrange(world)
    uneven = rng.random() < 0.5
    rows: Any
    if kind in ("broadcast", "reduce"):
        rows, uneven = total, False
    elif kind == "all_to_all":
        whole = [split(rng, total, world) for _ in range(world)]
        rows = whole if uneven else [[total // world] * world] * world
    else:
        rows = split(rng, total, world) if uneven else [total // world] * world
    used = (
        max(sum(r) for r in rows)
        if kind == "all_to_all"
        else rows
        if isinstance(rows, int)
        else sum(rows)
    )
    return (
        kind,
        algorithm,
        dtype,
        op,
        root,
        rows,
        width,
        rng.randint(0, numel - used * unit),
        uneven,
    )


def grid(
    world: int,
    dtypes: Any,
    sizes: Any,
    *,
    numel: int = NUMEL,
    ops: Any = None,
    seed: int = 0,
    repeats: int = 1,
) -> list[Call]:
    rng = random.Random(1000 * world + seed)
    calls = []
    for dtype in dtypes:
        for kind in KINDS:
            wanted = [op for op in ops_for(dtype) if ops is None or op in ops]
            for op in wanted if kind in REDUCING else ("sum",):
                for algorithm in algorithms_for(kind, dtype):
                    for size in sizes:
                        for _ in range(repeats):
                            calls.append(
                                make_call(rng, kind, algorithm, dtype, op, size, world, numel)
                            )
    rng.shuffle(calls)
    return calls


def check(
    ranks: Ranks,
    data: Data,
    calls: list[Call],
    options: dict[str, Any] | None = None,
    **kwargs: Any,
) -> None:
    function, args = "run_calls", (data.directory, calls)
    if options is not None:
        function, args = "run_calls_in_group", (f"collectives{next(_names)}", options, *args)  # type: ignore[assignment]
    timeout = kwargs.pop("timeout", 120)
    answers = ranks.results("jobs_collectives", function, *args, timeout=timeout, **kwargs)
    reports = [report for _, reports in answers for report in reports]
    if reports:
        ranks.failed = True
        wrong = ", ".join(f"rank {r}: {num}" for r, (num, _) in enumerate(answers) if num)
        text = "\n".join(reports[:40])
        raise AssertionError(
            f"{ranks.world_size} ranks, {len(calls)} calls, wrong ones by {wrong}\n{text}"
        )


@worlds
@pytest.mark.parametrize("dtype", TYPES)
def test_every_combination(world: int, dtype: str) -> None:
    """Layouts and entry points vary from call to call and from rank to rank."""
    sizes = SMALL_SIZES if world < 5 else SMALL_SIZES[world % 2 :: 2]
    check(pool(world), shared_data(world, NUMEL), grid(world, [dtype], sizes))


@worlds
def test_mixed_collectives_with_a_slow_rank(world: int) -> None:
    """Back to back, of all kinds, all-reduces of every algorithm among them: one scratch."""
    rng = random.Random(world)
    calls = grid(
        world, ("float32", "bfloat16", "int32"), (0, 1, 9, 33, 1024, 8195), ops=["sum"], seed=2
    )
    names = (
        "one_shot_ll",
        "two_shot_ll",
        "one_shot_sentinel",
        "two_shot_sentinel",
        "one_shot_flag",
        "two_shot_flag",
    )
    for _ in range(len(calls) // 2):
        n = rng.choice((1, 9, 33, 1024, 8195))
        entry = ("all_reduce", rng.choice(names), "float32", "sum", n, rng.randint(0, NUMEL - n))
        calls.insert(rng.randrange(len(calls)), entry)
    data = shared_data(world, NUMEL)
    for slow_rank in {0, world - 1}:
        check(pool(world), data, calls, slow_rank=slow_rank)


@few_worlds
def test_middle_and_large_sizes(world: int) -> None:
    numel = LARGE_SIZES[-1] + 300
    types = ("float32", "bfloat16", "int64") if world < 8 else ("bfloat16",)
    sizes = (65537, *LARGE_SIZES[1:])
    with Data(world, numel, dtypes=types, ops=["sum"]) as data:
        calls = grid(world, types, sizes, numel=numel, ops=["sum"], seed=3)
        check(pool(world), data, calls, timeout=200)


@pytest.mark.parametrize("world", [2, 3, 5, 8])
def test_parts_larger_than_the_scratch(world: int) -> None:
    """Several epochs in a call; ranks whose pairs need fewer go on with those that need more."""
    numel = 300_000 if world < 5 else 100_000
    types = ("float32", "bfloat16", "int8") if world < 5 else ("float32",)
    with Data(world, numel, dtypes=types, ops=["sum"]) as data:
        calls = grid(world, types, (1, 1000, 8195, 65537, numel), numel=numel, ops=["sum"], seed=4)
        options = {"scratch_bytes": (world + 1) * 64 * 1024}
        check(pool(world), data, calls, options=options, slow_rank=1, timeout=200)


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("wrap", [31, 32, 63])
def test_epochs_that_wrap(world: int, wrap: int) -> None:
    data = shared_data(world, NUMEL)
    calls = grid(world, ("float32", "int32"), (1, 33, 8195), ops=["sum"], seed=wrap)
    for below in (2, 5):
        options = {"first_epoch": (1 << wrap) - below}
        check(pool(world), data, calls, options=options, slow_rank=world - 1)


@worlds
def test_copies_keep_every_bit(world: int) -> None:
    """NaNs of every payload and sign, the sentinel's own bits too, arrive as they were."""
    numel = 9000
    with Data(world, numel, wild_share=1.0, seed=1, ops=["max"]) as data:
        check(
            pool(world), data, grid(world, TYPES, (1, 33, 8195), numel=numel, ops=["max"], seed=5)
        )


@worlds
def test_a_root_that_runs_ahead(world: int) -> None:
    for root in {0, world - 1}:
        results = pool(world).results("jobs_collectives", "run_ahead", root, 400, timeout=120)
        assert [wrong for rank in results for wrong in rank] == []


@worlds
def test_front_and_gradients(world: int) -> None:
    results = pool(world).results("jobs_collectives", "call_front")
    assert [wrong for rank in results for wrong in rank] == []


@few_worlds
def test_the_torch_fallback(world: int) -> None:
    """Every kind through torch.distributed (Gloo), mixed with our own; integers add up exactly."""
    calls = grid(world, ["int32"], (0, 1, 9, 8195), ops=["sum", "max"], seed=4)
    calls += [c for c in grid(world, ["float32"], (33,), seed=5) if c[0] not in REDUCING]
    by_torch = [(c[0], "torch" if idx % 4 else c[1], *c[2:]) for idx, c in enumerate(calls)]
    check(pool(world), shared_data(world, NUMEL), by_torch)


@few_worlds
def test_torchs_forms_and_lists(world: int) -> None:
    for rank, wrong in enumerate(pool(world).results("jobs_torch_forms", "as_torch_has_them")):
        assert not wrong, (rank, wrong)


@few_worlds
def test_plans_give_the_same_bits(world: int) -> None:
    directory = shared_data(world, 2 * NUMEL).directory
    results = pool(world).results("jobs_collectives", "plans", directory, timeout=120)
    assert [wrong for rank in results for wrong in rank] == []


def test_errors_before_anything_is_sent() -> None:
    x: dict[str, Any] = {"shape": [6, 2]}
    odd: dict[str, Any] = {"shape": [5, 2]}
    cases = [
        ("broadcast", [x, 2], {}, "root is 2"),
        ("broadcast_", [x, -1], {}, "root is -1"),
        ("reduce", [x, 7], {}, "root is 7"),
        ("reduce", [x, 0, "median"], {}, "median"),
        ("reduce_scatter", [odd], {}, "cannot be cut into 2 equal parts"),
        ("reduce_scatter", [{"shape": []}], {}, "cannot be cut"),
        ("all_to_all", [odd], {}, "cannot be cut into 2 equal parts"),
        ("reduce_scatter", [x], {"splits": [1, 2, 3]}, "has 3 numbers"),
        ("reduce_scatter", [x], {"splits": [1, 2]}, "add up to 3"),
        ("reduce_scatter", [x], {"splits": [7, -1]}, "-1 for rank 1"),
        ("all_gather", [x], {"splits": [5, 5]}, "has 6"),
        ("all_gather", [x], {"splits": [6]}, "has 1 numbers"),
        ("all_to_all", [x], {"input_splits": [3, 3]}, "both input_splits and output_splits"),
        ("all_to_all", [x], {"input_splits": [3, 2], "output_splits": [3, 3]}, "add up to 5"),
        ("all_gather", [x], {"algorithm": "one_shot_sentinel"}, "a copy must be exact"),
        ("broadcast", [x], {"algorithm": "two_shot_ll"}, "it is one exchange"),
        ("reduce", [{"shape": [4], "dtype": "int32"}], {"algorithm": "one_shot_sentinel"}, "spare"),
        ("reduce", [{"shape": [4], "dtype": "bool"}, 0, "avg"], {}, "no meaning for bool"),
        ("reduce_scatter", [x], {"algorithm": "three_shot"}, "three_shot"),
        ("all_gather", [{"shape": [4], "dtype": "complex64"}], {}, "unsupported dtype"),
        ("all_gather", [x, "no such group"], {}, "no such group"),
        ("all_gather_out", [x], {"out": {"shape": [11, 2]}}, "12 rows"),
        (
            "all_gather_out",
            [x],
            {"out": {"shape": [12, 2], "dtype": "int32"}},
            "out has dtype int32",
        ),
        ("reduce_scatter_out", [x], {"out": {"shape": [6, 2]}}, "3 rows"),
        ("all_to_all_out", [x], {"out": {"shape": [6, 3]}}, "out has shape"),
    ]
    results = pool(2).results("jobs_collectives", "errors", cases)
    assert [wrong for rank in results for wrong in rank] == []


def test_a_missing_rank_is_named() -> None:
    with Ranks(3) as ranks:
        algorithms = ["one_shot_ll", "one_shot_flag"]
        results = ranks.results("jobs_collectives", "missing_rank", 1, algorithms, timeout=120)
        assert results[1] == []
        for reports in (results[0], results[2]):
            assert len(reports) == 12
            for algorithm, kind, error, text in reports:
                where = f"{algorithm} {kind}: {error} {text}"
                assert error == "CollectiveTimeout" and "rank 1 did not arrive" in text, where
                assert ("all_to_all" if kind == "uneven" else kind) in text, where


def test_debug_mode_names_what_differs() -> None:
    with Ranks(3, env={"LLCOLL_DEBUG": "1"}) as ranks:
        results = ranks.results("jobs_collectives", "mismatches")
        assert [wrong for rank in results for wrong in rank] == []


if DEVICE == "cuda":
    pytestmark = pytest.mark.skip(reason="tests/gpu/collectives.py serves the GPU")
