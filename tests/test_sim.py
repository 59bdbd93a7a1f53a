"""The shipped protocols on simulated memory that is weaker than any GPU's.

LLCOLL_SIM_SECONDS: processor seconds for the random schedules together (default 45); the longer
run of a release uses 600. Each program's seeds start at LLCOLL_SIM_SEED (default: a new one each
day, printed), so a failure names the program and the seed that repeats it.
"""

from __future__ import annotations

import datetime
import os
from typing import Any

import pytest
import sim_families
import sim_programs
from sim_programs import TWO_THREADS, USER, back_to_back, make_call, make_program, sim

SECONDS = float(os.environ.get("LLCOLL_SIM_SECONDS", "45"))
SEED = int(os.environ.get("LLCOLL_SIM_SEED", datetime.date.today().toordinal())) * 1_000_000_000
PROGRAMS = {**sim_programs.shipped_programs(), **sim_families.programs()}
counts: dict[str, int] = {}  # by kernel
KERNELS = sorted({name.split(":")[0] for name in PROGRAMS})


def fail_with_trace(name: str, program: Any, seed: int, text: str) -> None:
    lines = sim.trace_of(program, seed)
    pytest.fail(f"{name}: {text}, seed {seed}; the run's last steps:\n" + "\n".join(lines[-60:]))


@pytest.mark.parametrize("kernel", KERNELS)
def test_random_schedules(kernel: str) -> None:
    mine = {name: p for name, p in PROGRAMS.items() if name.split(":")[0] == kernel}
    each = SECONDS / len(PROGRAMS)
    total = failed_calls = 0
    for name, program in mine.items():
        report = sim.run_random(program, first_seed=SEED, schedules=10**9, max_seconds=each)
        total += report.schedules
        failed_calls += report.failed_calls
        if report.bad.verdict != sim.Verdict.right:
            fail_with_trace(name, program, report.bad_seed, report.bad.text)
        assert report.schedules >= 100, f"{name}: {report.schedules} schedules are too few"
        assert report.steps > 0
    assert failed_calls > 0, "no program met a timeout"
    counts[kernel] = total
    print(f"{kernel}: {total} schedules of {len(mine)} programs, seeds from {SEED}")


def test_how_many(capsys: pytest.CaptureFixture[str]) -> None:
    """What the log of a run of CI says."""
    if not counts:
        pytest.skip("the random schedules did not run")
    total, kernels = sum(counts.values()), len(counts)
    with capsys.disabled():
        print(f"\nsimulator: {total} random schedules of {kernels} kernels, seeds from {SEED}")
    assert total >= 100 * kernels


def test_same_seed_same_run() -> None:
    program = PROGRAMS["one_shot_sentinel: idle member in the tail"]
    assert sim.trace_of(program, 7) == sim.trace_of(program, 7)
    assert sim.trace_of(program, 7) != sim.trace_of(program, 8)


def test_speed() -> None:
    """Small programs run fast enough for millions of schedules."""
    report = sim.run_random(PROGRAMS["one_shot_ll: same"], schedules=5000)
    assert (
        report.schedules / report.seconds > 15_000
    )  # 140,000 on the machine of docs/memory-model.md


# Every schedule, every stale load and every late store of small programs. The kernels of one
# exchange fit; where a program is too large for that, the search ends at the limit of states.
def small(kernel: str, calls: list[dict[str, Any]], **world: Any) -> Any:
    return make_program([make_call(**{"kernel": kernel, **call}) for call in calls], **world)


EXHAUSTIVE = {
    "two ranks, 5 epochs": ([{"numel": 1}] * 5, {}),
    "two ranks, two units, 4 epochs": ([{"numel": 4}] * 4, {}),
    "three ranks, 3 epochs": ([{"numel": 1}] * 3, {"ranks": 3}),
    "five epochs in one launch": ([{"numel": 10, "max_chunk": 1}], {}),
    "mixed sizes": ([{"numel": n} for n in (4, 2, 4, 2)], {}),
    "two threads, one idle": ([{"numel": 6, "max_chunk": 2}] * 2, TWO_THREADS),
    "two CTAs, then one": ([{"numel": 4, "channels": c} for c in (2, 1, 2)], {}),
    "dependent": (back_to_back(), USER),
    "a timeout": ([{"numel": 1}] * 3, {"timeouts": 1}),
}
# What has rules of its own, in fewer programs: one more choice at each step costs a factor.
ZERO_COPY = [{"symmetric_inputs": [0, 1], "symmetric_outputs": [0]}] * 3
IN_PLACE = [{"symmetric_inputs": [0, 1], "in_place": True}] * 3
FAMILIES: dict[str, dict[str, tuple[list[dict[str, Any]], dict[str, Any]]]] = {
    "_pull": {
        "zero copy": (ZERO_COPY, USER),
        "zero copy in place": (IN_PLACE, USER),
        "zero copy, two threads": (ZERO_COPY[:2], {**USER, **TWO_THREADS}),
        "zero copy, a timeout": (ZERO_COPY, {**USER, "timeouts": 1}),
    },
    "two_shot_ll128": {
        "lines": ([{"numel": 2}] * 3, {}),
        "lines in chunks": ([{"numel": 16, "max_chunk": 1}] * 2, {}),
    },
    "buffer": {
        "a buffer, 4 epochs": ([{"numel": 4}] * 4, {}),
        "a buffer in chunks": ([{"numel": 8, "max_chunk": 1}] * 2, {}),
        "a buffer, three ranks": ([{"numel": 4}] * 2, {"ranks": 3}),
    },
    "rows": {"rows, 4 epochs": ([{"numel": 3}] * 4, {})},
}
FAMILY_SEARCHES = [
    (kernel, name)
    for part, searches in FAMILIES.items()
    for kernel in KERNELS
    if part in kernel and sim.has_kernel(kernel, sim.DType.float32) and "lanes" not in kernel
    for name in searches
]
ALL_STATES = int(os.environ.get("LLCOLL_SIM_STATES", "20000"))


def search(kernel: str, calls: list[dict[str, Any]], states: int, **world: Any) -> None:
    report = sim.explore(small(kernel, calls, **world), max_states=states)
    print(f"{report.states} states, {report.ends} ends, complete: {report.complete}")
    assert report.bad.verdict == sim.Verdict.right, report.bad.text + "\n".join(report.trace[-60:])
    assert report.complete or report.states == states
    assert report.ends > 0 or not report.complete


PLAIN = [k for k in KERNELS if k not in {kernel for kernel, _ in FAMILY_SEARCHES}]


@pytest.mark.parametrize("name", EXHAUSTIVE)
@pytest.mark.parametrize(
    "kernel", [k for k in PLAIN if not k.endswith(("streaming", "wide", "lanes"))]
)
def test_every_schedule(kernel: str, name: str) -> None:
    calls, world = EXHAUSTIVE[name]
    search(kernel, calls, ALL_STATES, **world)


@pytest.mark.parametrize(("kernel", "name"), FAMILY_SEARCHES)
def test_every_schedule_of_families(kernel: str, name: str) -> None:
    part = next(part for part in FAMILIES if part in kernel)
    calls, world = FAMILIES[part][name]
    search(kernel, calls, ALL_STATES // 4, **world)


@pytest.mark.parametrize("order", sim_families.ORDERS)
def test_ll128_is_deterministic_where_the_order_is(order: tuple[int, ...]) -> None:
    """Forced to add in one order, every schedule gives the bits of the sum in that order, on
    every rank; and another order's sum is told from it."""
    program = sim_families.forced_order(order, order)
    report = sim.run_random(program, first_seed=SEED, schedules=1000)
    assert report.bad.verdict == sim.Verdict.right, f"seed {report.bad_seed}: {report.bad.text}"
    other = sim_families.forced_order(order, (*order[1:], order[0]))
    assert sim.run_random(other, schedules=1).bad.verdict == sim.Verdict.wrong_data


def test_ll128_adds_in_the_order_of_arrival() -> None:
    """Left alone, the order is the schedule's: some run differs from the sum in rank order."""
    report = sim.run_random(sim_families.forced_order((), (0, 1, 2)), schedules=100)
    assert report.bad.verdict == sim.Verdict.wrong_data


def test_some_searches_are_complete() -> None:
    """The limit of states must not hide that nothing is ever searched to the end."""
    for kernel in ("one_shot_ll", "two_shot_ll", "one_shot_flag", "one_shot_sentinel"):
        calls, world = EXHAUSTIVE["two ranks, 5 epochs"]
        report = sim.explore(small(kernel, calls, **world), max_states=10**6)
        assert report.complete and report.ends > 1
