"""The performance model on made-up machines, the tuner's rows, and both commands on this one."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_bench import run

from llcoll import _C, model, tables, tune

MACHINE = {  # overhead, peer, slope, far, knee
    "one_shot_ll": model.Terms(0.3, 0.1, 2e-4, 0.0, 0, 0.0),
    "one_shot_flag": model.Terms(0.5, 0.2, 1e-4, 2e-4, 128 << 10, 0.0),
    "two_shot_flag": model.Terms(1.4, 0.2, 1e-4, 0.0, 0, 0.0),
}
TRUE = model.Model(0.25, MACHINE)
SIZES = (64, 2 << 10, 16 << 10, 128 << 10, 1 << 20, 4 << 20)


def points(*world_sizes: int, noise: float = 0.0) -> list[model.Point]:
    found = []
    for world_size in world_sizes:
        for idx, num_bytes in enumerate(SIZES):
            for name in MACHINE:
                factor = 1 + noise * math.sin(7 * idx + len(name) + world_size)
                us = TRUE.predict(name, num_bytes, world_size) * factor
                found.append(model.Point(name, world_size, num_bytes, us))
    return found


def test_traffic_counts_what_a_rank_sends() -> None:
    assert model.traffic_of("one_shot_flag", 8) == 7
    assert model.traffic_of("one_shot_ll", 8) == 14
    assert model.traffic_of("two_shot_sentinel", 8) == pytest.approx(2 * 7 / 8)
    assert model.rounds_of("one_shot_ll") == 1 and model.rounds_of("two_shot_flag") == 2


def test_fit_finds_a_machine_that_follows_the_model() -> None:
    fitted = model.fit(points(2, 4), TRUE.bound_us)
    for name in MACHINE:
        for world_size in (2, 4, 8):  # 8: never shown
            for num_bytes in (8, 1000, 70_000, 3_000_000, 16 << 20):
                want = TRUE.predict(name, num_bytes, world_size)
                assert fitted.predict(name, num_bytes, world_size) == pytest.approx(want, rel=0.02)
    assert fitted.terms["one_shot_flag"].knee_bytes == 128 << 10
    assert fitted.crossovers(4) == TRUE.crossovers(4)
    assert [name for _, name in TRUE.crossovers(4)] == list(MACHINE)


def test_fit_of_one_world_size_holds_there() -> None:
    fitted = model.fit(points(4, noise=0.05), TRUE.bound_us)
    measured = {
        size: {name: TRUE.predict(name, size, 4) for name in MACHINE} for size in (8, 9000, 400_000)
    }
    found = model.errors(fitted, measured, 4)
    assert found.median < 0.08 and found.worst < 0.2 and found.picks == 3
    assert found.regret == pytest.approx(1.0) and " at " in found.worst_at


def test_errors_and_measured_crossovers() -> None:
    measured = {64: {"one_shot_ll": 1.0, "one_shot_flag": 2.0}, 4096: {"one_shot_flag": 4.0}}
    assert model.measured_crossovers(measured) == [(64, "one_shot_ll"), (4096, "one_shot_flag")]
    flat = model.Terms(1.0, 0.0, 0.0, 0.0, 0, 0.0)
    constant = model.Model(0.0, {"one_shot_flag": flat})
    found = model.errors(constant, measured, 2)
    assert (found.worst, found.picks, found.sizes) == (0.75, 1, 2)
    assert found.regret == pytest.approx(math.sqrt(2))


def test_rows_follow_the_fastest() -> None:
    times = {size: {n: TRUE.predict(n, size, 4) for n in MACHINE} for size in tune_sizes()}
    rows = tune.rows_from(times, list(MACHINE))
    assert [name for _, name in rows] == list(MACHINE) and rows[-1][0] == 1 << 24
    for (edge, _), (start, _) in zip(rows, TRUE.crossovers(4)[1:], strict=False):
        assert start / 2.1 < edge < start * 2.1
    assert [name for _, name in tune.rows_from(times, ["two_shot_flag"])] == ["two_shot_flag"]


def tune_sizes() -> list[int]:
    return [8 << shift for shift in range(22)]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(*[st.floats(1, 30)] * 4), min_size=2, max_size=22))
def test_rows_are_valid_and_cost_no_more_than_any_single_algorithm(cells: list[Any]) -> None:
    names = ["one_shot_ll", "one_shot_flag", "two_shot_flag", "torch"]
    times = {
        size: dict(zip(names, cell, strict=True))
        for size, cell in zip(tune_sizes(), cells, strict=False)
    }
    rows = tune.rows_from(times, names)
    assert 1 <= len(rows) <= tune.MAX_ROWS
    assert [edge for edge, _ in rows] == sorted({edge for edge, _ in rows})

    def cost(pick: Any) -> float:
        return sum(math.log(here[pick(size)]) for size, here in times.items())

    followed = cost(lambda size: next(name for edge, name in rows if size <= edge))
    best_single = min(cost(lambda size, name=name: name) for name in names)
    assert followed <= best_single + 1e-9


def test_noise_makes_no_row() -> None:
    times = {size: {"one_shot_ll": 1.0, "one_shot_flag": 1.05} for size in tune_sizes()}
    times[64] = {"one_shot_ll": 1.04, "one_shot_flag": 1.0}
    assert tune.rows_from(times, ["one_shot_ll", "one_shot_flag"]) == [[1 << 24, "one_shot_ll"]]


@pytest.mark.parametrize(
    ("rows", "built_in", "want"),
    [
        ([[64, "a"], [1000, "b"]], "* c", [[64, "a"], [None, "b"]]),
        ([[1000, "b"]], "500 a, 4000 c, * d", [[4000, "b"], [None, "d"]]),
        ([[1000, "b"]], "4000 c, 8000 b, * d", [[8000, "b"], [None, "d"]]),
        ([[1000, "b"]], "1000 c, * d", [[1000, "b"], [None, "d"]]),
    ],
)
def test_larger_messages_stay_as_built_in(rows: Any, built_in: str, want: Any) -> None:
    got = tune.with_built_in_end(rows, built_in)
    assert got == want


def test_built_in_rows_cover_every_class() -> None:
    machine = tables.Machine(tables.Key("x", "y", 4, "shared-gpu"), 90)
    rows = tune.built_in_rows(machine)
    assert set(rows) == set(tables.CLASSES)
    for name, text in rows.items():
        assert text.split()[-2] == "*", name


def test_model_command(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    results = run("quick", "llcoll.model", ["--verify", "--json", str(path)], timeout=240)
    assert [status for status, _ in results] == [0, 0]
    found = json.loads(path.read_text())["model"]
    assert {"one_shot_ll", "two_shot_flag"} <= set(found["terms"])
    assert found["errors"]["sizes"] == 2 and found["errors"]["median"] > 0
    assert "predicted crossovers" in results[0][1] and "measured crossovers" in results[0][1]


def test_tune_command_writes_a_table_that_init_reads(tmp_path: Path) -> None:
    path = tmp_path / "tuning.json"
    flags = ["-e", "2K", "--out", str(path), "--no-regret"]
    results = run("quick", "llcoll.tune", flags, timeout=240)
    assert [status for status, _ in results] == [0, 0], results[0][1]
    (entry,) = tables.read(path)["entries"]
    assert entry["key"] == asdict(tables.Key(tables._cpu_name(), "-", 2, "host"))
    assert entry["provenance"]["date"] and set(entry["provenance"]["us"]) == set(tables.CLASSES)
    machine = tables.Machine(tables.Key(**entry["key"]), 0)
    for policy in ("fast", "invariant"):
        text = tables.text_of(entry["rows"][policy])
        for num_bytes in (8, 1 << 30):
            picked = machine.select(text, policy, num_bytes, "float32")
            assert _C.usable(picked, "float32", "sum", policy, False)
    assert all(name != "torch" for rows in entry["rows"]["invariant"].values() for _, name in rows)


def test_tune_refuses_a_forced_algorithm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLCOLL_ALGORITHM", "one_shot_ll")
    with pytest.raises(SystemExit, match="LLCOLL_ALGORITHM"):
        tune.main([])


def test_where_the_table_goes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("LLCOLL_TUNING_FILE", "none")
    assert tune.target_path(None) == tmp_path / "llcoll" / "tuning.json"
    monkeypatch.setenv("LLCOLL_TUNING_FILE", "/a/b")
    assert tune.target_path(None) == Path("/a/b") and tune.target_path(Path("c")) == Path("c")
