"""Random sequences of calls: sizes, types, operators, algorithms, grids, ranks that skip or lag."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sim_programs import make_call, make_program, sim

COMMON = settings(
    max_examples=60,
    deadline=None,
    derandomize=False,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
FLOATS = [sim.DType.float32, sim.DType.bfloat16]
OPS = [sim.ReduceOp.sum, sim.ReduceOp.avg, sim.ReduceOp.min, sim.ReduceOp.max, sim.ReduceOp.prod]
ALGORITHMS = [
    f"{shot}_{protocol}"
    for shot in ("one_shot", "two_shot")
    for protocol in ("ll", "sentinel", "flag")
]


@st.composite
def one_call(draw: st.DrawFn, kernels: list[str]) -> Any:
    return make_call(
        draw(st.sampled_from(kernels)),
        numel=draw(st.integers(1, 9)),
        dtype=draw(st.sampled_from(FLOATS)),
        op=draw(st.sampled_from(OPS)),
        channels=draw(st.integers(1, 2)),
        max_chunk=draw(st.integers(0, 3)),
        in_place=draw(st.booleans()),
    )


@given(
    calls=st.lists(one_call(ALGORITHMS), min_size=1, max_size=6),
    ranks=st.integers(2, 3),
    threads=st.integers(1, 2),
    odd_values=st.booleans(),
    first_epoch=st.sampled_from([0, 1, 2**31 - 2, 2**32 - 2, 2**63 - 2]),
    seed=st.integers(0, 2**40),
)
@COMMON
def test_sequences(
    calls: list[Any], ranks: int, threads: int, odd_values: bool, first_epoch: int, seed: int
) -> None:
    program = make_program(
        calls, ranks=ranks, threads=threads, odd_values=odd_values, first_epoch=first_epoch
    )
    report = sim.run_random(program, first_seed=seed, schedules=200, max_seconds=2)
    assert report.bad.verdict == sim.Verdict.right, f"seed {report.bad_seed}: {report.bad.text}"


@given(
    calls=st.lists(one_call(ALGORITHMS), min_size=2, max_size=6),
    absent=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1)), min_size=1, max_size=2),
    timeouts=st.integers(1, 2),
    seed=st.integers(0, 2**40),
)
@COMMON
def test_ranks_that_skip_or_stop(
    calls: list[Any], absent: list[tuple[int, int]], timeouts: int, seed: int
) -> None:
    """A rank that leaves out a call and all later ones: its peers' calls end by the limit, none of
    them with data that are not what all ranks sent."""
    for call, rank in absent:
        for later in calls[call:]:
            later.absent = sorted({*later.absent, rank})
    program = make_program(calls, timeouts=timeouts)
    report = sim.run_random(program, first_seed=seed, schedules=200, max_seconds=2)
    assert report.bad.verdict == sim.Verdict.right, f"seed {report.bad_seed}: {report.bad.text}"
    if all(len(call.absent) < 2 for call in calls) and any(call.absent for call in calls):
        assert report.failed_calls > 0
