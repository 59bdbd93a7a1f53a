"""Lists of all-reduce cases, and the files of inputs and expected results that ranks read."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import reference
from harness import Ranks

EXACT = ("one_shot_ll", "two_shot_ll", "one_shot_flag", "two_shot_flag", "auto")
SENTINEL = ("one_shot_sentinel", "two_shot_sentinel")
# The larger ones have tests of their own: a full grid of them would take too long.
SMALL_SIZES = (0, 1, 2, 3, 7, 8, 9, 16, 17, 31, 33, 1024, 8191, 8192, 8195)
LARGE_SIZES = (65537, 1 << 20, (1 << 20) + 17)
WORLDS: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7, 8, 16)

Case = tuple[str, str, str, int, int]


def algorithms_for(dtype: str) -> tuple[str, ...]:
    return (*EXACT, *SENTINEL) if dtype in reference.FLOATS else EXACT


def ops_for(dtype: str) -> tuple[str, ...]:
    return tuple(op for op in reference.OPS if (dtype, op) != ("bool", "avg"))


class Data:
    """Files of inputs and expected results for one world size."""

    def __init__(
        self,
        world_size: int,
        numel: int,
        *,
        dtypes: Iterable[str] = tuple(reference.TYPES),
        ops: Sequence[str] | None = None,
        seed: int = 0,
        wild_share: float = 0.125,
        inputs: dict[str, np.ndarray] | None = None,
    ) -> None:
        self.world_size, self.numel = world_size, numel
        self.directory = tempfile.mkdtemp(prefix="llcoll-data-")
        for dtype in dtypes:
            stacked = (inputs or {}).get(dtype)
            if stacked is None:
                stacked = reference.make_inputs(dtype, world_size, numel, seed, wild_share)
            np.save(Path(self.directory, f"in.{dtype}.npy"), stacked)
            for op in ops_for(dtype):
                if ops is None or op in ops:
                    expected = reference.all_reduce(dtype, op, stacked)
                    np.save(Path(self.directory, f"{op}.{dtype}.npy"), expected)

    def close(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Data:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_kept: dict[tuple[int, int], Data] = {}


def shared_data(world_size: int, numel: int) -> Data:
    """Data that several tests of one world size read; those of other world sizes are dropped."""
    for key in [key for key in _kept if key[0] != world_size]:
        _kept.pop(key).close()
    if (world_size, numel) not in _kept:
        _kept[world_size, numel] = Data(world_size, numel)
    return _kept[world_size, numel]


def drop_shared_data() -> None:
    for key in list(_kept):
        _kept.pop(key).close()


def grid(
    numel: int,
    sizes: Sequence[int],
    dtypes: Sequence[str],
    *,
    ops: Sequence[str] = reference.OPS,
    algorithms: Sequence[str] | None = None,
    seed: int = 0,
    repeats: int = 1,
) -> list[Case]:
    """Every combination in random order, each at its own offset into data of `numel` elements."""
    rng = random.Random(seed)
    cases = []
    for dtype in dtypes:
        for algorithm in algorithms or algorithms_for(dtype):
            if algorithm in SENTINEL and dtype not in reference.FLOATS:
                continue
            for op in ops_for(dtype):
                if op in ops:
                    for size in sizes:
                        for _ in range(repeats):
                            cases.append((algorithm, dtype, op, size, rng.randint(0, numel - size)))
    rng.shuffle(cases)
    return cases


_names = count()


def check(
    ranks: Ranks,
    data: Data,
    cases: list[Case],
    *,
    options: dict[str, Any] | None = None,
    **kwargs: Any,
) -> None:
    """Runs the cases on every rank and fails with what differs.

    `options` asks for a fresh communicator.
    """
    function = "run_cases"
    args: tuple[Any, ...] = (data.directory, cases)
    if options is not None:
        function, args = "run_cases_in_group", (f"group{next(_names)}", options, *args)
    timeout = kwargs.pop("timeout", 120)
    answers = ranks.results("jobs_all_reduce", function, *args, timeout=timeout, **kwargs)
    reports = [report for _, reports in answers for report in reports]
    if reports:
        ranks.failed = True
        wrong = ", ".join(f"rank {r}: {num}" for r, (num, _) in enumerate(answers) if num)
        text = "\n".join(reports[:40])
        raise AssertionError(
            f"{ranks.world_size} ranks, {len(cases)} calls, wrong ones by {wrong}\n{text}"
        )
