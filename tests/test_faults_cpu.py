"""Faults that are injected: what dies, stops or errs is named in time, and the others go on.

test_failures_cpu.py has the faults of calls and of set-up that need no killing of ranks before or
after a call; test_flight_recorder.py has abort.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from harness import DEVICE, Ranks
from test_failures_cpu import awaited, same_text

from llcoll import diagnose

pytestmark = pytest.mark.skipif(DEVICE != "cpu", reason="segments and signals of CPU ranks")

JOBS = "jobs_faults"
LIMIT = 1.0
ALGORITHMS = ["one_shot_ll", "two_shot_sentinel", "two_shot_flag"]


def check_survivors(ranks: Ranks, outcomes: list[Any], lost: int) -> None:
    """They raised in time and named the lost rank; nothing of theirs is left; they work on."""
    for outcome in outcomes:
        assert outcome.kind == "value", outcome
        report = outcome.value
        assert report["error"][0] == "CollectiveTimeout", report
        assert awaited(report["text"]) == {lost}, report
        assert report["seconds"] < LIMIT + 1, report
    survivors = [rank for rank in range(ranks.world_size) if rank != lost]
    for result in ranks.results(JOBS, "go_on_without", survivors, 20.0, ranks=survivors):
        assert result == {"left": 0, "works": True, "left after": 0}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("when", ["before", "during", "after"])
def test_a_killed_rank_is_named_and_the_others_go_on(when: str, algorithm: str) -> None:
    before = sorted(os.listdir("/dev/shm"))
    with Ranks(3, init_options={"timeout": LIMIT}) as ranks:
        assert ranks.results(JOBS, "has_mappings") == [True] * 3
        if when == "after":
            reports = ranks.results(JOBS, "call_after", 0.0, 5000, algorithm)
            assert [report["error"] for report in reports] == [[]] * 3
        if when == "during":
            # Rank 1 is in the call, and waits for rank 0, when it is killed.
            delays: list[tuple[float]] = [(0.6,), (0.0,), (0.0,)]
            ranks.start(JOBS, "call_after", 5000, algorithm, per_rank=delays)
            time.sleep(0.3)
            ranks.signal(1, signal.SIGKILL)
            outcomes = ranks.collect(20, [0, 2])
            if all(outcome.value["error"] == [] for outcome in outcomes):
                # What it had sent was enough for this call: it is missed in the next one.
                outcomes = ranks.run(JOBS, "call_after", 0.0, 5000, algorithm, ranks=[0, 2])
        else:
            ranks.signal(1, signal.SIGKILL)
            outcomes = ranks.run(JOBS, "call_after", 0.0, 5000, algorithm, ranks=[0, 2])
        check_survivors(ranks, outcomes, lost=1)
    assert sorted(os.listdir("/dev/shm")) == before


def test_a_stopped_rank_that_wakes_up_harms_nobody() -> None:
    """Its late stores go to memory of a communicator that nobody uses any more."""
    with Ranks(3, init_options={"timeout": LIMIT}) as ranks:
        delays: list[tuple[float]] = [(0.6,), (0.0,), (0.0,)]
        ranks.start(JOBS, "call_after", 200_000, "one_shot_flag", per_rank=delays)
        time.sleep(0.3)
        ranks.signal(1, signal.SIGSTOP)
        check_survivors(ranks, ranks.collect(20, [0, 2]), lost=1)
        ranks.start(JOBS, "go_on_without", [0, 2], 20.0, ranks=[0, 2])
        ranks.signal(1, signal.SIGCONT)
        (sleeper,) = ranks.collect(20, [1])
        assert sleeper.value["error"][0] in ("CollectiveTimeout", "CollectiveAborted"), sleeper
        for outcome in ranks.collect(60, [0, 2]):
            assert outcome.kind == "value" and outcome.value["works"], outcome


GOOD = (3000, "float32", "sum", "one_shot_ll")
ODD: dict[str, tuple[int, str, str, str]] = {
    "size": (3300, "float32", "sum", "one_shot_ll"),
    "dtype": (3000, "bfloat16", "sum", "one_shot_ll"),
    "op": (3000, "float32", "max", "one_shot_ll"),
    "algorithm": (3000, "float32", "sum", "two_shot_flag"),
}


def test_another_call_without_debug_mode_is_bounded_and_can_be_found(tmp_path: Path) -> None:
    """Nobody hangs, and whoever waits in vain says so; the records tell which rank was odd."""
    with Ranks(3, init_options={"timeout": LIMIT}) as ranks:
        for what, odd in ODD.items():
            calls = [odd if rank == 1 else GOOD for rank in range(3)]
            results = ranks.results(JOBS, "odd_call", per_rank=calls, timeout=30)
            files = []
            for rank, (report, record) in enumerate(results):
                assert not report["error"] or report["error"][0] in (
                    "CollectiveTimeout",
                    "CollectiveAborted",
                ), (what, report)
                assert report["seconds"] < 2 * LIMIT + 1, (what, report)
                files.append(tmp_path / f"{what}-{rank}.json")
                files[-1].write_text(json.dumps(record))
            if what != "op":  # the same bytes travel: one rank has another result, as with NCCL
                assert any(report["error"] for report, _ in results), what
            (finding,) = diagnose.diagnose(map(diagnose.read, files))
            assert finding.differing == [1], (what, finding.lines)
            assert ranks.results(JOBS, "renew", LIMIT) == [True] * 3


@pytest.mark.parametrize("what", ODD)
def test_another_call_in_debug_mode_is_named_at_once(what: str) -> None:
    """And the communicator works on: nothing was sent."""
    with Ranks(3, init_options={"timeout": 20}, env={"LLCOLL_DEBUG": "1"}) as ranks:
        calls = [ODD[what] if rank == 1 else GOOD for rank in range(3)]
        for report, _ in ranks.results(JOBS, "odd_call", per_rank=calls, timeout=30):
            assert report["error"][0] == "CollectiveMismatch", report
            assert "rank 1: all_reduce of" in report["text"] and report["seconds"] < 2, report
        assert all(
            report["error"] == []
            for report, _ in ranks.results(JOBS, "odd_call", *GOOD, timeout=30)
        )


@pytest.mark.parametrize("where", ["settings", "table", "backend"])
def test_an_exception_in_one_ranks_set_up_reaches_all(where: str) -> None:
    with Ranks(3, init=False, timeout=10) as ranks:
        began = time.monotonic()
        text = same_text(ranks.results(JOBS, "init_raising", 1, where, timeout=30))
        assert "rank 1" in text and "on fire" in text
        assert time.monotonic() - began < 5
        assert ranks.results(JOBS, "init_and_work") == [True] * 3


def test_no_address_space_on_one_rank_is_the_same_error_on_all() -> None:
    with Ranks(3, init=False, timeout=10) as ranks:
        text = same_text(ranks.results(JOBS, "init_without_memory", 1, timeout=30))
        assert "rank 1" in text and "annot allocate memory" in text, text
        assert ranks.results(JOBS, "init_and_work") == [True] * 3
