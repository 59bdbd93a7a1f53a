"""A failure is an answer, not a hang: it names the right rank, and what can go on goes on."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from harness import DEVICE, Outcome, Ranks, pool

JOBS = "jobs_failures"
ALGORITHMS = ["one_shot_ll", "two_shot_ll", "one_shot_sentinel", "two_shot_sentinel"]
ALGORITHMS += ["one_shot_flag", "two_shot_flag"]


def shared_memory_files() -> list[str]:
    return sorted(os.listdir("/dev/shm"))


def awaited(text: str) -> set[int]:
    """The ranks that a message names as the ones that did not come."""
    return {int(rank) for rank in re.findall(r"rank (\d+) did not arrive", text)}


@pytest.mark.parametrize(("world", "missing"), [(2, 0), (2, 1), (3, 2), (4, 0), (4, 3)])
def test_a_missing_rank_is_named_by_all_others(world: int, missing: int) -> None:
    """One element in two-shot: one rank waits for the missing one, the others for that rank."""
    with Ranks(world) as ranks:
        algorithms = ALGORITHMS if world == 3 else ALGORITHMS[1:6:2]
        results = ranks.results(
            JOBS, "missing_rank", missing, [1, 5000], algorithms, 0.6, timeout=120
        )
        for rank, reports in enumerate(results):
            assert len(reports) == (0 if rank == missing else 2 * len(algorithms))
            for algorithm, numel, first, second in reports:
                where = f"rank {rank}, {algorithm}, {numel}: {first['error'][:1]} {first['text']}"
                assert first["error"][0] == "CollectiveTimeout", where
                assert awaited(first["text"]) == {missing}, where
                assert 0.4 < first["seconds"] < 3, where
                assert second["error"][0] in ("CollectiveTimeout", "CollectiveAborted"), second
                assert second["seconds"] < 0.3, second


def test_larger_than_scratch_and_a_missing_rank() -> None:
    options = {"timeout": 0.6, "scratch_bytes": 256 * 1024}
    with Ranks(3, init_options=options) as ranks:
        a, b, c = ranks.results(JOBS, "only", [0, 2], 1_000_000, algorithm="two_shot_ll")
        assert b is None
        for report in (a, c):
            assert report["error"][0] == "CollectiveTimeout" and awaited(report["text"]) == {1}, (
                report
            )


def test_timeout_comes_from_the_process_group_unless_set() -> None:
    with Ranks(2, timeout=2) as ranks:
        began = time.monotonic()
        (report,) = ranks.results(JOBS, "only", [0], 10, ranks=[0])
        assert report["error"][0] == "CollectiveTimeout"
        assert 1.5 < time.monotonic() - began < 5
    with Ranks(2, env={"LLCOLL_TIMEOUT": "0.5"}) as ranks:
        (report,) = ranks.results(JOBS, "only", [0], 10, ranks=[0])
        assert report["error"][0] == "CollectiveTimeout" and report["seconds"] < 2, report


@pytest.mark.parametrize("what", ["all_reduce", "front", "barrier", "plan"])
def test_ctrl_c_ends_a_wait(what: str) -> None:
    with Ranks(2) as ranks:
        if what == "plan":
            ranks.results(JOBS, "make_plan")
        ranks.start(JOBS, "wait_in", what, ranks=[0])
        time.sleep(0.5)
        began = time.monotonic()
        ranks.signal(0, signal.SIGINT)
        (outcome,) = ranks.collect(10, [0])
        assert outcome.error[:1] == ["KeyboardInterrupt"], outcome
        assert time.monotonic() - began < 2
        assert ranks.results("jobs", "echo", 1, ranks=[0]) == [(0, 1)]


@pytest.mark.parametrize("algorithm", ["one_shot_ll", "two_shot_sentinel", "two_shot_flag"])
def test_a_killed_rank_leaves_nothing_and_the_others_raise(algorithm: str) -> None:
    before = shared_memory_files()
    with Ranks(3, init_options={"timeout": 1.5}) as ranks:
        ranks.start(JOBS, "loop_until_error", 50_000, algorithm)
        time.sleep(0.5)
        ranks.signal(1, signal.SIGKILL)
        first, dead, last = ranks.collect(20)
        assert (dead.kind, dead.value) == ("died", -signal.SIGKILL)
        for outcome in (first, last):
            assert outcome.kind == "value", outcome
            assert outcome.value["error"][0] in ("CollectiveTimeout", "CollectiveAborted"), outcome
            assert "rank 1" in outcome.value["text"], outcome
        assert shared_memory_files() == before
    assert shared_memory_files() == before


def test_killing_all_ranks_in_mid_call_leaves_nothing() -> None:
    before = shared_memory_files()
    with Ranks(3) as ranks:
        ranks.start(JOBS, "loop_until_error", 50_000, "auto")
        time.sleep(0.3)
        ranks.kill()
    assert shared_memory_files() == before


def test_a_rank_that_sleeps_past_the_limit_harms_nobody() -> None:
    """Stopped in mid-call, given up by the others, who build a new communicator while it sleeps."""
    with Ranks(3, init_options={"timeout": 1}) as ranks:
        ranks.start(JOBS, "loop_for", 30)
        time.sleep(0.4)
        ranks.signal(1, signal.SIGSTOP)
        outcomes = ranks.collect(20, [0, 2])
        for outcome in outcomes:
            assert outcome.kind == "value" and outcome.value["error"][0] == "CollectiveTimeout", (
                outcome
            )
            assert awaited(outcome.value["text"]) == {1}, outcome
        ranks.start(JOBS, "new_communicator", ranks=[0, 2])
        time.sleep(0.3)
        ranks.signal(1, signal.SIGCONT)
        (sleeper,) = ranks.collect(20, [1])
        assert sleeper.kind == "value", sleeper
        assert sleeper.value["error"][0] in ("CollectiveTimeout", "CollectiveAborted"), sleeper
        ranks.start(JOBS, "new_communicator", ranks=[1])
        assert [outcome.value for outcome in ranks.collect(60)] == [True] * 3


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_a_rank_lost_while_it_waited_is_the_culprit(number: signal.Signals, tmp_path: Path) -> None:
    """What it last said, that it awaits rank 0, must not put the blame on rank 0."""
    with Ranks(3, init_options={"timeout": 1.5}) as ranks:
        ranks.start(JOBS, "two_calls", 0, str(tmp_path))
        while not all((tmp_path / f"rank{rank}").exists() for rank in (1, 2)):
            time.sleep(0.01)  # the test's own limit ends it
        time.sleep(0.3)  # rank 1 has sent, and waits
        ranks.signal(1, number)
        (tmp_path / "go").touch()
        for outcome in ranks.collect(20, [0, 2]):
            assert outcome.kind == "value", outcome
            first, second = outcome.value
            assert first["error"] == [], first
            assert second["error"][0] == "CollectiveTimeout", second
            assert awaited(second["text"]) == {1}, second


def test_ranks_that_slept_past_the_limit_go_on(tmp_path: Path) -> None:
    """Stopped in a wait, as a debugger or a suspended machine does: whoever wakes up past its limit
    gives its peers, who slept too, the time of grace."""
    with Ranks(2, init_options={"timeout": 1.0}) as ranks:
        ranks.start(JOBS, "two_calls", 1, str(tmp_path))
        while not (tmp_path / "rank0").exists():
            time.sleep(0.01)  # the test's own limit ends it
        time.sleep(0.3)  # rank 0 has sent, and waits
        ranks.signal(0, signal.SIGSTOP)
        time.sleep(1.5)
        ranks.signal(0, signal.SIGCONT)
        (tmp_path / "go").touch()
        for outcome in ranks.collect(20):
            assert outcome.kind == "value", outcome
            assert [report["error"] for report in outcome.value] == [[], []], outcome


GOOD = (100, "float32", "sum", "one_shot_ll")
MISMATCHES = {
    "numel": (101, "float32", "sum", "one_shot_ll"),
    "dtype": (100, "bfloat16", "sum", "one_shot_ll"),
    "op": (100, "float32", "max", "one_shot_ll"),
    "algorithm": (100, "float32", "sum", "two_shot_flag"),
    "raised": (100, "float32", "median", "one_shot_ll"),
    "raised late": (100, "int32", "sum", "one_shot_sentinel"),
}


@pytest.mark.parametrize("odd_rank", [0, 2])
@pytest.mark.parametrize("what", MISMATCHES)
def test_debug_mode_finds_a_mismatch(what: str, odd_rank: int) -> None:
    with Ranks(3, env={"LLCOLL_DEBUG": "1"}, init_options={"timeout": 20}) as ranks:
        assert ranks.results(JOBS, "new_communicator") == [True] * 3
        calls = [MISMATCHES[what] if rank == odd_rank else GOOD for rank in range(3)]
        began = time.monotonic()
        reports = ranks.results(JOBS, "mismatched", per_rank=calls, timeout=30)
        assert time.monotonic() - began < 5
        for rank, report in enumerate(reports):
            if what.startswith("raised") and rank == odd_rank:
                assert report["error"][0] == "LlcollError", report
            else:
                assert report["error"][0] == "CollectiveMismatch", report
                assert f"rank {odd_rank}" in report["text"], report


def test_debug_mode_passes_what_is_right() -> None:
    with Ranks(3, env={"LLCOLL_DEBUG": "1"}) as ranks:
        assert ranks.results(JOBS, "works") == [True] * 3
        results = ranks.results(JOBS, "errors_alike", timeout=60)
        broken = [n for reports in results for n, r in reports if r["error"][:1] == ["Broken"]]
        assert broken == []


# What the text of each error must contain: the offending values.
TEXTS = {
    "op": ["median", "sum", "prod"],
    "algorithm": ["three_shot", "one_shot_ll"],
    "dtype": ["omplex", "float32"],
    "int16": ["int16|Short"],
    "bool avg": ["bool", "avg"],
    "sentinel int": ["one_shot_sentinel", "int32"],
    "sentinel int two": ["two_shot_sentinel", "int32"],
    "ll128 max": ["two_shot_ll128"],
    "group": ["no_such_group", "llcoll.init"],
    "out shape": [r"\[99\]", r"\[100\]"],
    "out dtype": ["float64", "float32"],
    "out device": ["meta"],
    "expanded": ["expand|stride"],
    "sparse": ["parse"],
}


def test_errors_that_all_ranks_make_alike() -> None:
    results = pool(3).results(JOBS, "errors_alike", timeout=60)
    for reports in results:
        assert [name for name, _ in reports] == list(TEXTS)
        for name, report in reports:
            assert "RuntimeError" in report["error"], (name, report)
            for part in TEXTS[name]:
                assert re.search(part, report["text"]), (name, report["text"])
    texts = [[report["text"] for _, report in reports] for reports in results]
    assert texts[0] == texts[1] == texts[2]


def same_text(reports: list[dict[str, Any]]) -> str:
    texts = {report["text"] for report in reports}
    assert all(report["error"] for report in reports), reports
    assert len(texts) == 1, texts
    return texts.pop()


INIT_FAILURES: dict[str, tuple[dict[str, Any], dict[str, str], str]] = {
    "algorithm": ({}, {"LLCOLL_ALGORITHM": "three_shot"}, "three_shot"),
    "policy": ({"policy": "reckless"}, {}, "reckless"),
    "timeout": ({"timeout": -1}, {}, "-1"),
    "timeout variable": ({}, {"LLCOLL_TIMEOUT": "soon"}, "soon"),
    "scratch": ({"scratch_bytes": -5}, {}, "-5"),
    "scratch variable": ({}, {"LLCOLL_SCRATCH_BYTES": "much"}, "much"),
}


@pytest.mark.parametrize("what", INIT_FAILURES)
def test_init_that_fails_on_one_rank_fails_on_all(what: str) -> None:
    options, environment, part = INIT_FAILURES[what]
    with Ranks(3, init=False, timeout=10) as ranks:
        per_rank = [(options, environment) if rank == 1 else ({}, {}) for rank in range(3)]
        text = same_text(ranks.results(JOBS, "init_with", per_rank=per_rank))
        assert part in text and "rank 1" in text
        text = same_text(ranks.results(JOBS, "init_with", options, environment))
        assert part in text
        assert ranks.results(JOBS, "init_and_work") == [True] * 3


@pytest.mark.skipif(DEVICE != "cpu", reason="the CPU backend's segments")
@pytest.mark.parametrize("limit", ["RLIMIT_FSIZE", "RLIMIT_NOFILE"])
def test_init_without_room_on_one_rank_fails_on_all(limit: str) -> None:
    with Ranks(3, init=False, timeout=10) as ranks:
        text = same_text(ranks.results(JOBS, "init_without_room", 2, limit))
        assert "rank 2" in text
        assert ranks.results(JOBS, "init_and_work") == [True] * 3


def test_a_rank_that_never_inits_is_a_bounded_error() -> None:
    with Ranks(3, init=False, timeout=2) as ranks:
        reports = ranks.results(JOBS, "init_with", {}, {}, ranks=[0, 1], timeout=30)
        assert all(report["error"] for report in reports), reports
        assert all(re.search(r"rank\S* 2\b", report["text"]) for report in reports), reports


def ends_well(ranks: Ranks) -> None:
    assert ranks.leave() == [0] * ranks.world_size
    for rank in range(ranks.world_size):
        log = ranks.log(rank)
        assert not re.search("Traceback|terminate|Fatal|Segmentation|leaked", log), log


def test_init_is_idempotent_and_a_context_manager() -> None:
    with Ranks(2) as ranks:
        assert ranks.results(JOBS, "init_twice") == [True] * 2
        for fine, report in ranks.results(JOBS, "as_context"):
            assert fine
            assert report["error"][0] == "LlcollError" and "llcoll.init" in report["text"], report
        assert ranks.results(JOBS, "init_and_work") == [True] * 2
        ends_well(ranks)


def test_shutdown_in_every_order() -> None:
    before = shared_memory_files()
    with Ranks(2) as ranks:
        for report in ranks.results(JOBS, "shutdown_twice"):
            assert report["error"][0] == "LlcollError", report
        ends_well(ranks)
    with Ranks(2) as ranks:
        ranks.results(JOBS, "destroy_first")
        ends_well(ranks)
    with Ranks(2) as ranks:
        assert ranks.results(JOBS, "shutdown_and_return") == [True] * 2
        ranks.results(JOBS, "make_plan")
        ends_well(ranks)  # with a communicator and a plan alive
    assert shared_memory_files() == before


def test_a_late_rank_is_warned_about_and_waited_for() -> None:
    with Ranks(3, env={"LLCOLL_WARN_AFTER": "0.3"}) as ranks:
        assert ranks.results(JOBS, "late", 1, 1.2) == [3.0] * 3
        for rank in (0, 2):
            assert re.search(r"rank 1\b", ranks.log(rank)), ranks.log(rank)
        assert ranks.results(JOBS, "late", 1, 0.0) == [3.0] * 3


@pytest.mark.parametrize("forced", ["one_shot_ll", "two_shot_sentinel", "two_shot_flag"])
def test_the_environment_overrides_auto_alone(forced: str) -> None:
    with Ranks(2, env={"LLCOLL_ALGORITHM": forced}) as ranks:
        answers = ranks.results(JOBS, "resolved", ["auto", "two_shot_ll"])
        assert answers == [[forced, "two_shot_ll"]] * 2


def test_new_ranks_after_all_that() -> None:
    outcomes: list[Outcome] = pool(3).run(JOBS, "works")
    assert [outcome.value for outcome in outcomes] == [True] * 3, outcomes
