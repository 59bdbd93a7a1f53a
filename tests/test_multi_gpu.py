"""benchmarks/multi_gpu.sh where there is no GPU: the parts it would run, their record, the page."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_bench import run

from llcoll import tables

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "benchmarks" / "multi_gpu.sh"


def dry_run(tmp_path: Path, num_gpus: int, *args: str) -> tuple[int, list[str], str]:
    """Exit status, names of the parts and all output, where torch sees so many GPUs."""
    fake = tmp_path / "python"
    fake.write_text(f"#!/bin/sh\necho {num_gpus}\n")
    fake.chmod(0o755)
    environment = {**os.environ, "PYTHON": str(fake), "OUT": str(tmp_path / "out")}
    result = subprocess.run(
        [str(SCRIPT), "--dry-run", *args],
        env=environment,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    parts = [line.split()[0] for line in result.stdout.splitlines() if " (limit " in line]
    return result.returncode, parts, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("num_gpus", "args", "ranks"),
    [(2, [], {"2"}), (4, [], {"2", "4"}), (8, [], {"2", "4", "8"}), (1, ["--loopback"], {*"248"})],
)
def test_ranks_are_those_that_have_gpus(
    tmp_path: Path, num_gpus: int, args: list[str], ranks: set[str]
) -> None:
    status, parts, text = dry_run(tmp_path, num_gpus, *args)
    assert status == 0
    assert {part.rpartition("-")[2] for part in parts} == ranks
    kinds = {"tests", "litmus", "sol", "graph", "eager", "float32", "tune", "regret", "model"}
    assert {part.rpartition("-")[0] for part in parts} == kinds
    assert ("correctness-7" in text) == ("8" in ranks)
    assert ("sharing" in text) == bool(args)


def test_parts_are_selected_by_word_and_one_gpu_is_refused(tmp_path: Path) -> None:
    status, parts, _ = dry_run(tmp_path, 8, "sol", "graph-4")
    assert (status, parts) == (0, ["sol-2", "sol-4", "graph-4", "sol-8"])
    status, parts, text = dry_run(tmp_path, 1)
    assert (status, parts) == (2, []) and "--loopback lets ranks share a GPU" in text


def test_every_part_of_the_cuda_tests_that_it_names_exists(tmp_path: Path) -> None:
    _, _, text = dry_run(tmp_path, 8)
    words = {
        word.rpartition("-")[0] or word
        for line in text.splitlines()
        if "tests/gpu.sh" in line
        for word in line.split("tests/gpu.sh", 1)[1].split()
    }
    gpu_sh = (ROOT / "tests" / "gpu.sh").read_text()
    assert len(words) >= 9
    for word in words:
        assert f'part "{word}-$num_ranks"' in gpu_sh or f"part {word}" in gpu_sh, word


def test_parts_record_their_outcome_within_the_budget(tmp_path: Path) -> None:
    script = f"""
        OUT={tmp_path}; selected=(); deadline=$((SECONDS + 17))
        . {ROOT}/tests/parts.sh
        part good 9 true
        part bad 9 sh -c 'echo "SomeError: why"; exit 3'
        part slow 1 sleep 30
        deadline=$SECONDS
        part late 9 true
        print_summary
        exit $failed
    """
    result = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 1
    rows = [line.split("\t") for line in (tmp_path / "parts.tsv").read_text().splitlines()]
    assert [row[:2] for row in rows] == [
        ["good", "ok"],
        ["bad", "FAILED"],
        ["slow", "FAILED"],
        ["late", "not run"],
    ]
    assert rows[1][3] == "status 3: SomeError: why" and rows[2][3].startswith("status 124")
    assert "bad" in result.stdout and "SomeError: why" in result.stdout.split("== summary")[1]


def test_page_and_json(tmp_path: Path) -> None:
    (tmp_path / "parts.tsv").write_text(
        "sol-2\tFAILED\t9\tstatus 1: x\nsol-2\tok\t7\t\neager-2\tok\t5\t\n"
    )
    flags = ["-b", "128", "-e", "2K", "-f", "16", "-n", "12", "-w", "4", "--rounds", "3"]
    flags += ["--compare", "gloo,nccl-ring", "--json", str(tmp_path / "eager_2.json")]
    assert run("command", "llcoll.bench", flags)[0][0] == 0
    sol = ["--json", str(tmp_path / "sol_2.json")]
    assert run("command", "llcoll.sol", sol)[0][0] == 0
    rows = [[65536, "one_shot_ll"], [1 << 20, "two_shot_flag"], [None, "torch"]]
    entry = {
        "key": {"device": "G", "driver": "1", "world_size": 2, "topology": "gpu-per-rank"},
        "rows": {"fast": dict.fromkeys(tables.CLASSES, rows)},
    }
    (tmp_path / "tuning.json").write_text(json.dumps({"version": 1, "entries": [entry]}))
    report = [sys.executable, str(ROOT / "benchmarks" / "multi_gpu_report.py"), str(tmp_path)]
    subprocess.run(report, check=True, timeout=60, capture_output=True)

    data = json.loads((tmp_path / "multi_gpu.json").read_text())
    assert data["version"] == 1 and set(data["runs"]["eager"]) == {"2"}
    assert [part["state"] for part in data["parts"]] == ["ok", "ok"]
    page = (tmp_path / "multi_gpu.md").read_text()
    assert "| sol-2 | ok | 7 |" in page and "## Speed of light" in page
    assert "| size | auto | gloo | auto ran | best peer / auto |" in page
    measured = [line for line in page.splitlines() if line.startswith(("| 128 B |", "| 2 KiB |"))]
    assert len(measured) == 2
    for line in measured:
        _, _, own, theirs, _, ratio, _ = (cell.strip() for cell in line.split("|"))
        assert float(ratio) == pytest.approx(float(theirs) / float(own), rel=0.02)
    assert "missing: nccl-ring" in page
    # What is to be pasted is a table that the parser takes.
    tuned = page.split("```")[1].replace('"', "").replace("\n", "")
    machine = tables.Machine(tables.Key("G", "1", 2, "gpu-per-rank"), 90)
    assert machine.select(tuned, "fast", 100_000, "bfloat16") == "two_shot_flag"
    assert machine.select(tuned, "fast", 2 << 20, "float32") == "torch"
