"""llcoll.bench and llcoll.sol: flags, tables, files, statistics, wrong results."""

from __future__ import annotations

import csv
import json
import math
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import Ranks

from llcoll.bench import cases, options, plot, report
from llcoll.bench.timing import (
    Figure,
    Row,
    geometric_mean,
    lower_bound,
    percentile,
    regrets,
)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run(function: str, *args: Any, world: int = 2, timeout: float = 120) -> list[Any]:
    port = free_port()
    per_rank = [(rank, world, port) for rank in range(world)]
    with Ranks(world, group=False) as ranks:
        return ranks.results("jobs_bench", function, *args, per_rank=per_rank, timeout=timeout)


def bench(*flags: str, world: int = 2) -> tuple[int, str]:
    quick = ["-n", "12", "-w", "4", "--rounds", "3"]
    results = run("command", "llcoll.bench", [*quick, *flags], world=world)
    assert len({status for status, _ in results}) == 1
    assert all(text == "" for _, text in results[1:])
    return results[0]


def data_lines(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line and not line.startswith("#")]


def test_table_has_nccl_tests_columns() -> None:
    status, text = bench("-b", "8", "-e", "2K", "-f", "16", "-d", "bfloat16", "-o", "max")
    assert status == 0
    rows = data_lines(text)
    assert [row[:4] for row in rows] == [
        ["8", "4", "bfloat16", "max"],
        ["128", "64", "bfloat16", "max"],
        ["2048", "1024", "bfloat16", "max"],
    ]
    for row in rows:
        for first in (4, 8):
            us, algbw, busbw = map(float, row[first : first + 3])
            assert us > 0 and row[first + 3] == "0"
            assert busbw == pytest.approx(algbw, abs=0.011)  # 2 (N - 1) / N is 1 for two ranks
            assert algbw == pytest.approx(int(row[0]) / us / 1e3, abs=0.011 + 0.01 * algbw)
    assert "# Out of bounds values : 0 OK" in text and "# Avg bus bandwidth" in text
    assert "time  algbw  busbw #wrong" in text and "p50" in text and "p99" in text


@pytest.mark.parametrize("mode", ["plan", "in-kernel"])
@pytest.mark.parametrize("world", [1, 3])
def test_modes(mode: str, world: int) -> None:
    flags = ["-b", "64", "-e", "64K", "-f", "32", "--mode", mode, "--algorithm", "all"]
    flags += ["--symmetric"] if mode == "plan" else []
    status, text = bench(*flags, world=world)
    assert status == 0 and "two_shot_flag" in text and "OK" in text


def test_files_and_regret_and_missing_peers(tmp_path: Path) -> None:
    names = {kind: tmp_path / "out" / f"b.{kind}" for kind in ("json", "csv", "png")}
    files = ["--json", names["json"], "--csv", names["csv"], "--plot", names["png"]]
    status, text = bench(
        *["-b", "64", "-e", "4K", "-f", "8", "--regret", "--compare", "gloo,nccl,flux"],
        *map(str, files),
    )
    assert status == 0
    assert "# missing: nccl: rank 0: it reduces CUDA tensors" in text
    assert "# missing: flux: rank 0: unknown" in text and "# auto regret" in text
    data = json.loads(names["json"].read_text())
    assert data["version"] == 1 and data["wrong"] == 0
    assert data["about"]["machine"]["world_size"] == 2 and data["about"]["date"]
    assert set(data["about"]["missing"]) == {"nccl", "flux"}
    assert data["speed_of_light"]["bound_us"] > 0
    rows = [row for row in data["rows"] if row["contender"] == "auto"]
    assert [row["bytes"] for row in rows] == [64, 512, 4096]
    for row in rows:
        for form in ("out_of_place", "in_place"):
            figure = row[form]
            assert len(figure["rounds"]) == 3 and 0 < figure["p50"] <= figure["p99"]
    each = data["regret"]["each"]
    assert len(each) == 6 and all(one["best"] != "auto" for one in each)
    assert data["regret"]["geometric_mean"] == pytest.approx(
        math.exp(sum(math.log(one["ratio"]) for one in each) / 6)
    )
    assert data["peers"]["gloo"]["all_sizes"] > 1
    with names["csv"].open() as file:
        table = list(csv.DictReader(file))
    assert {row["form"] for row in table} == {"out_of_place", "in_place"}
    gloo = [row for row in table if row["contender"] == "gloo"]
    assert [row["bytes"] for row in gloo] == ["64", "512", "4096"]
    assert names["png"].read_bytes().startswith(b"\x89PNG")


def test_a_wrong_result_is_named_not_timed_and_fails() -> None:
    results = run("wrong_result", ["-b", "64", "-e", "64", "-n", "3", "--rounds", "1"])
    assert [status for status, _ in results] == [1, 1]
    text = results[0][1]
    row = data_lines(text)[0]
    assert row[7] == "0" and row[8:12] == ["-", "-", "-", "2"]  # two buffers, one element each
    assert "# Out of bounds values : 2 FAILED" in text


def test_unchecked_says_so() -> None:
    status, text = bench("-b", "64", "-e", "64", "-c", "0")
    assert status == 0 and "0 not checked" in text
    assert data_lines(text)[0][7] == "N/A"


def test_sol_reports_the_bound(tmp_path: Path) -> None:
    path = tmp_path / "sol.json"
    results = run("command", "llcoll.sol", ["--json", str(path)])
    assert [status for status, _ in results] == [0, 0]
    data = json.loads(path.read_text())
    bound = data["speed_of_light"]["bound_us"]
    assert 0.005 < bound < 100 and data["speed_of_light"]["parts_ns"]
    for one in data["at_128_bytes"]:
        assert one["ratio"] == pytest.approx(one["us"] / bound)
    assert {one["mode"] for one in data["at_128_bytes"]} == {"in-kernel", "eager"}
    assert "bound" in results[0][1]


@pytest.mark.parametrize(
    "flags",
    [
        ["-f", "1"],
        ["-n", "0"],
        ["-b", "8X"],
        ["--mode", "fast"],
        ["-G", "2", "--mode", "plan"],
        ["--algorithm", "one_shot"],
        ["-d", "float128"],
    ],
)
def test_bad_flags(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        options.parse_args(flags)
    assert caught.value.code == 2 and flags[0] in capsys.readouterr().err


def test_flags() -> None:
    args = options.parse_args(["-b", "6", "-e", "1K", "-f", "4", "--dtype", "float32", "-G", "7"])
    assert options.sizes(args) == [4, 24, 96, 384]
    assert (args.mode, args.cudagraph) == ("graph", 7)
    assert options.parse_args(["--algorithm", "all"]).algorithm is None


@pytest.mark.parametrize("dtype", sorted({str(d) for d in options.TYPES.values()}))
@pytest.mark.parametrize("world", [2, 8])
def test_sums_are_exact_in_any_order(dtype: str, world: int) -> None:
    kind = getattr(torch, dtype.removeprefix("torch."))
    case = cases.Case(kind, "sum", world)
    want = case.expected(1000)
    for order in (range(world), reversed(range(world))):
        total = torch.zeros(1000, dtype=kind)
        for rank in order:
            own = case.input(1000, rank)
            # The type's own addition, rounded at every step.
            total = (total.double() + own.double()).to(kind)
        assert cases.num_wrong(total, want) == 0
    assert cases.num_wrong(want, want) == 0
    other = want.clone()
    other.view(cases.BITS[kind.itemsize])[3] ^= 1
    assert cases.num_wrong(other, want) == 1


def test_statistics() -> None:
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2 and percentile(range(1, 101), 0.99) == 99
    assert percentile([5.0], 0.99) == 5
    assert geometric_mean([2.0, 8.0]) == pytest.approx(4)
    assert lower_bound([1.0] * 5 + [2.0] * 6) == 1 and lower_bound([2.0] * 11) == 2


def row(name: str, rounds: list[float], peer: bool = False, num_bytes: int = 64) -> Row:
    return Row(name, peer, num_bytes, 16, [Figure(True, 0, rounds)], ran=name)


def test_regret_is_paired_and_against_the_best() -> None:
    rows = [
        row("auto", [2.0, 4.0, 6.0]),
        row("one_shot_ll", [1.0, 2.0, 3.0]),
        row("one_shot_flag", [9.0, 9.0, 9.0]),
        row("torch", [0.1]),  # dropped in the first look
        row("gloo", [0.5, 0.5, 0.5], peer=True),
    ]
    (found,) = regrets(rows)
    assert (found.ratio, found.best, found.in_place) == (2.0, "one_shot_ll", True)
    assert regrets(rows[1:]) == [] and regrets(rows[:1]) == []


def test_comparisons_take_a_peers_best_variant() -> None:
    rows = [
        row("auto", [1.0, 1.0]),
        row("nccl", [9.0, 9.0], peer=True),
        row("nccl-window", [3.0, 5.0], peer=True),
        row("auto", [10.0, 10.0], num_bytes=1 << 20),
        row("nccl", [5.0, 5.0], peer=True, num_bytes=1 << 20),
    ]
    found = report.comparisons(rows)["nccl"]
    assert found["up_to_64_KiB"] == pytest.approx(4)
    assert found["all_sizes"] == pytest.approx(math.sqrt(4 * 0.5))
    assert (found["least_lower_bound"], found["least_at_bytes"]) == (0.5, 1 << 20)


def test_winners_and_families() -> None:
    rows = [row("auto", [2.0]), row("gloo", [1.0], peer=True), row("auto", [1.0], num_bytes=128)]
    assert [(size, r.contender) for size, r in plot.winners(rows)] == [(64, "gloo"), (128, "auto")]
    assert plot.family("two_shot_ll128") == "two_shot_ll128"
    assert plot.family("one_shot_sentinel") == "one_shot" and plot.family("torch") == ""
