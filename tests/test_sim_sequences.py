"""Random sequences of calls: sizes, types, operators, algorithms, grids, streams, places of
tensors, ranks that skip a call, stop or lag."""

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
PROTOCOLS = ("ll", "sentinel", "flag", "pull")
ALGORITHMS = [f"{shot}_{protocol}" for shot in ("one_shot", "two_shot") for protocol in PROTOCOLS]
# Of one type or operator.
SUMS = [
    *("two_shot_ll128", "one_shot_narrow", "two_shot_narrow", "one_shot_ll_multicast"),
    *("one_shot_sentinel_multicast", "two_shot_sentinel_multicast", "two_shot_pull_multicast"),
]
EXCHANGES = [
    *("all_gather_ll", "all_gather_flag", "broadcast_ll", "broadcast_flag", "reduce_ll"),
    *("reduce_scatter_ll", "reduce_scatter_sentinel", "reduce_scatter_flag"),
    *("all_to_all_ll", "all_to_all_flag"),
]
SEEDS = st.integers(0, 2**40)


@st.composite
def one_call(draw: st.DrawFn, kernels: list[str], plain: bool = False) -> Any:
    """`plain`: float32, so that tensors can be modelled or an exchange may follow."""
    kernel = draw(st.sampled_from(kernels))
    call = make_call(
        kernel,
        numel=draw(st.integers(1, 9)),
        channels=draw(st.integers(1, 2)),
        max_chunk=draw(st.integers(0, 3)),
    )
    if kernel in ALGORITHMS:
        call.dtype = sim.DType.float32 if plain else draw(st.sampled_from(FLOATS))
        call.op = draw(st.sampled_from(OPS))
        call.in_place = draw(st.booleans())
    elif kernel.startswith(("broadcast", "reduce_ll")):
        call.root = draw(st.integers(0, 1))
    return call


def allowed(threads: int, calls: list[Any]) -> int:
    return 1 if any("ll128" in call.kernel for call in calls) else threads


def check(program: Any, seed: int) -> Any:
    report = sim.run_random(program, first_seed=seed, schedules=200, max_seconds=2)
    assert report.bad.verdict == sim.Verdict.right, f"seed {report.bad_seed}: {report.bad.text}"
    return report


@given(
    calls=st.lists(one_call(ALGORITHMS + SUMS), min_size=1, max_size=6),
    ranks=st.integers(2, 3),
    threads=st.integers(1, 2),
    odd_values=st.booleans(),
    first_epoch=st.sampled_from([0, 1, 2**31 - 2, 2**32 - 2, 2**61 - 2]),
    seed=SEEDS,
)
@COMMON
def test_sequences(
    calls: list[Any], ranks: int, threads: int, odd_values: bool, first_epoch: int, seed: int
) -> None:
    # A switch adds NaNs as it will.
    odd_values &= all(call.kernel != "two_shot_pull_multicast" for call in calls)
    threads = allowed(threads, calls)
    world = {"ranks": ranks, "threads": threads, "first_epoch": first_epoch}
    check(make_program(calls, odd_values=odd_values, **world), seed)


@given(
    calls=st.lists(one_call(ALGORITHMS + SUMS + EXCHANGES, plain=True), min_size=2, max_size=6),
    streams=st.lists(st.integers(0, 1), min_size=6, max_size=6),
    users=st.lists(st.booleans(), min_size=6, max_size=6),
    places=st.lists(
        st.tuples(st.sets(st.integers(0, 2)), st.sets(st.integers(0, 2))), min_size=6, max_size=6
    ),
    ranks=st.integers(2, 3),
    threads=st.integers(1, 2),
    seed=SEEDS,
)
@COMMON
def test_streams_and_places(
    calls: list[Any],
    streams: list[int],
    users: list[bool],
    places: list[tuple[set[int], set[int]]],
    ranks: int,
    threads: int,
    seed: int,
) -> None:
    """Calls on two streams, some behind a user's kernel that reads the last result and writes the
    next input; each rank's tensors in the group's pool or elsewhere."""
    program: list[Any] = []
    for call, stream, user, (inputs, outputs) in zip(calls, streams, users, places, strict=False):
        call.stream = stream
        if "_pull" in call.kernel:
            call.symmetric_inputs = [rank for rank in inputs if rank < ranks]
            call.symmetric_outputs = [rank for rank in outputs if rank < ranks]
        last = [earlier for earlier in program if earlier.stream == stream][-1:]
        if user or not last or last[0].in_place:
            program.append(make_call("user", stream=stream, numel=9 * ranks))
        program.append(call)
    threads = allowed(threads, calls)
    check(make_program(program, ranks=ranks, threads=threads, model_user=True), seed)


@given(
    calls=st.lists(one_call(ALGORITHMS), min_size=2, max_size=6),
    absent=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1)), min_size=1, max_size=2),
    timeouts=st.integers(1, 2),
    seed=SEEDS,
)
@COMMON
def test_ranks_that_stop(
    calls: list[Any], absent: list[tuple[int, int]], timeouts: int, seed: int
) -> None:
    """A rank that leaves out a call and all later ones: its peers' calls end by the limit, none of
    them with data that are not what all ranks sent."""
    for call, rank in absent:
        for later in calls[call:]:
            later.absent = sorted({*later.absent, rank})
    report = check(make_program(calls, timeouts=timeouts), seed)
    if all(len(call.absent) < 2 for call in calls) and any(call.absent for call in calls):
        assert report.failed_calls > 0


@given(
    before=st.lists(one_call(["one_shot_ll", "two_shot_ll"]), max_size=2),
    skipped=one_call(["one_shot_sentinel", "two_shot_flag", "two_shot_pull"]),
    after=st.lists(one_call(["one_shot_ll", "two_shot_ll"]), min_size=1, max_size=3),
    rank=st.integers(0, 2),
    ranks=st.integers(2, 3),
    seed=SEEDS,
)
@COMMON
def test_ranks_that_skip(
    before: list[Any], skipped: Any, after: list[Any], rank: int, ranks: int, seed: int
) -> None:
    """A rank that leaves out one call, of a protocol that the others do not use: the limit ends it
    on every rank. (In one protocol the next call would stand in for the one left out: nothing but
    debug mode tells them apart.)"""
    skipped.absent = [rank % ranks]
    program = make_program([*before, skipped, *after], ranks=ranks, timeouts=1)
    assert check(program, seed).failed_calls > 0
