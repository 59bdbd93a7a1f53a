"""What benchmarks/nccl_front.py stands on, without a GPU: the small MPI and the report."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BENCHMARKS = ROOT / "benchmarks"
TIMEOUT = 30.0


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("g++") is None or shutil.which("gcc") is None:
        pytest.skip("no C and C++ compilers")
    folder = tmp_path_factory.mktemp("mpi")
    shim = BENCHMARKS / "mpi_shim"
    flags = ["-O1", "-Wall", "-Wextra", "-Werror"]
    for command in (
        ["gcc", "-std=gnu11", *flags, "-c", str(shim / "mpi_shim.c"), "-o", "shim.o"],
        ["g++", "-std=c++20", *flags, f"-I{shim}", str(ROOT / "tests/cpp/mpi_shim_test.cpp")]
        + ["shim.o", "-o", "mpi_shim_test"],
    ):
        result = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=2 * TIMEOUT
        )
        assert result.returncode == 0, result.stderr
    return folder / "mpi_shim_test"


def run(program: Path, ranks: list[int], world: int, *args: str, **extra: str) -> list[tuple]:
    env = dict(os.environ) | {"WORLD_SIZE": str(world), "MASTER_PORT": "1"}
    env |= {"LLCOLL_MPI_JOB": str(os.getpid()), "LLCOLL_MPI_TIMEOUT": "20", **extra}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    children = [
        subprocess.Popen([str(program), *args], env=env | {"RANK": str(rank)}, **pipes)
        for rank in ranks
    ]
    try:
        outputs = [child.communicate(timeout=TIMEOUT) for child in children]
    finally:
        for child in children:
            child.kill()
    return [(child.returncode, *out) for child, out in zip(children, outputs, strict=True)]


@pytest.mark.parametrize("world", [1, 2, 5])
def test_every_function(program: Path, world: int) -> None:
    # Twice under one name: the first run leaves nothing behind.
    for _ in range(2):
        for status, output, error in run(program, list(range(world)), world):
            assert (status, output) == (0, "right\n"), error


def test_different_collectives_end(program: Path) -> None:
    results = run(program, [0, 1], 2, "differ")
    assert [status for status, _, _ in results] == [70, 70]
    assert "met call" in results[0][2]


def test_a_missing_rank_ends_the_others(program: Path) -> None:
    for ranks, expected in (([0], "1 of 2 ranks came"), ([1], "rank 0 of")):
        [(status, _, error)] = run(program, ranks, 2, LLCOLL_MPI_TIMEOUT="1")
        assert status == 70 and expected in error


def test_refuses_ranks_that_are_none(program: Path) -> None:
    [(status, _, error)] = run(program, [2], 2)
    assert status == 70 and "rank 2 of 2" in error


TABLE = """# nThread 1 nGpus 1
           8           2   float   sum   -1     5.31    0.00    0.00       0     4.42  0.00  0.00  0
     1048576      262144   float   sum   -1    31.42   33.40   33.40       3    30.00  34.0  34.0  0
# Out of bounds values : 1 FAILED
"""


def test_reads_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import nccl_front

    rows = nccl_front.rows_of(TABLE)
    assert [(r["bytes"], r["us"], r["in_place_us"], r["wrong"]) for r in rows] == [
        (8, 5.31, 4.42, "0"),
        (1 << 20, 31.42, 30.0, "3"),
    ]


def solves(scale: float, ms: float) -> list[dict]:
    common = {"routine": "syevd", "n": 2, "error": 1e-14, "residual": 1e-14}
    return [{**common, "ms": [ms], "one_gpu_ms": [1.0], "values": [-2.0 * scale, 1.0]}]


@pytest.mark.parametrize(("apart", "status"), [(1e-13, 0), (1e-9, 1)])
def test_report_compares_eigenvalues(tmp_path: Path, apart: float, status: int) -> None:
    results = [
        {"name": "cusolver_mp", "side": side, "kind": "solve", "status": 0, "written": values}
        for side, values in (
            ("alone", solves(1.0, 7.0)),
            ("front", solves(1.0 + apart, 2.0)),
            ("free", [{**solves(1.0, 1.5)[0], "values": []}]),
            ("alone", solves(1.0, 9.0)),  # the rounds of a side count together
        )
    ]
    results[1] |= {"taken": 3, "calls": 4}
    path = tmp_path / "nccl_front_cusolver_2.json"
    path.write_text(json.dumps({"version": 1, "ranks": 2, "part": "cusolver", "results": results}))
    picture = tmp_path / "picture.png"
    command = [sys.executable, str(BENCHMARKS / "nccl_front.py"), "--report", str(path)]
    command += ["--plot", str(picture)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=2 * TIMEOUT)
    assert result.returncode == status, result.stderr
    assert "| syevd | 2 | 8.00 | 2.00 | 4.00 | 1.00 |" in result.stdout
    assert "| 1.50 | 5.33 |" in result.stdout
    assert "3 of 4 calls by llcoll (75.0 %)" in result.stdout
    assert picture.is_file()
