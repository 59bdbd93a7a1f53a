"""The harness on Gloo alone: results, errors, deaths and hangs are told apart."""

from __future__ import annotations

import os
import signal
import time

import pytest
from harness import JobFailed, Ranks


def bare(world_size: int) -> Ranks:
    return Ranks(world_size, init=False)


def test_values_and_state() -> None:
    with bare(3) as ranks:
        assert ranks.results("jobs", "echo", "x") == [(0, "x"), (1, "x"), (2, "x")]
        assert ranks.results("jobs", "gloo_sum") == [6.0] * 3
        echoed = ranks.results("jobs", "echo", per_rank=[(r * r,) for r in range(3)])
        assert [value for _, value in echoed] == [0, 1, 4]
        assert not ranks.failed


def test_errors_keep_class_and_text() -> None:
    with bare(2) as ranks:
        outcomes = ranks.run("jobs", "raise_value_error", "because")
        assert [o.kind for o in outcomes] == ["error"] * 2
        assert outcomes[0].error[0] == "ValueError" and outcomes[0].text == "because"
        assert "raise_value_error" in outcomes[1].details
        with pytest.raises(JobFailed, match="because"):
            ranks.results("jobs", "raise_value_error", "because")
        assert ranks.failed


def test_death_and_hang() -> None:
    with Ranks(3, group=False) as ranks:
        ranks.start("jobs", "exit_now", 7, ranks=[0])
        ranks.start("jobs", "sleep", 100, ranks=[1])
        ranks.start("jobs", "echo", 1, ranks=[2])
        began = time.monotonic()
        died, hung, fine = ranks.collect(timeout=1)
        assert time.monotonic() - began < 5
        assert (died.kind, died.value) == ("died", 7)
        assert hung.kind == "hung" and "in sleep" in hung.details
        assert fine.kind == "value"
    with Ranks(1, group=False) as ranks:
        ranks.start("jobs", "sleep", 100)
        time.sleep(0.2)
        ranks.signal(0, signal.SIGINT)
        (outcome,) = ranks.collect(timeout=10)
        assert outcome.error[0] == "KeyboardInterrupt"


def test_leaving_is_an_ordinary_exit_and_killing_leaves_no_process() -> None:
    with bare(2) as ranks:
        assert ranks.leave() == [0, 0]
    with bare(2) as ranks:
        pids = ranks.pids
    for pid in pids:
        assert not os.path.exists(f"/proc/{pid}")


def test_sixteen_ranks() -> None:
    with bare(16) as ranks:
        assert ranks.results("jobs", "gloo_sum") == [136.0] * 16
