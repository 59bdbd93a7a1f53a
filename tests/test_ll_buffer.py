"""Compiles and runs the C++ tests of LLBuffer, and draws more shapes for its exchange."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_headers import find_nvcc

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "tests" / "cpp" / "ll_buffer_test.cpp"
NAMES = re.findall(r"\bTEST\((\w+)\)", SOURCE.read_text())
FLAGS = [
    *("-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function"),
    "-fsanitize=address,undefined",
]

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ll_buffer") / "ll_buffer_test"
    includes = [f"-I{ROOT / 'csrc'}", f"-I{ROOT / 'csrc' / 'include'}"]
    sources = [str(SOURCE), str(ROOT / "csrc" / "check.cpp")]
    command = ["g++", *FLAGS, *includes, *sources, "-o", str(path), "-pthread"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return path


def run(program: Path, *arguments: object) -> None:
    command = [program, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"


# The first test pays for the compilation.
@pytest.mark.timeout(420)
@pytest.mark.parametrize("name", NAMES)
def test_ll_buffer(program: Path, name: str) -> None:
    run(program, name)


def test_all_tests_are_listed(program: Path) -> None:
    listed = subprocess.run(
        [program, "--list"], capture_output=True, text=True, timeout=60, check=True
    )
    assert listed.stdout.split() == NAMES


@pytest.mark.timeout(300)
@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    mode=st.sampled_from(("ll", "narrow", "sentinel")),
    num_ranks=st.integers(1, 5),
    parts=st.integers(2, 5),
    capacity=st.integers(1, 40),
    epoch=st.one_of(
        st.integers(0, 3),
        st.integers(-8, 8).map(lambda d: 2**32 + d),
        st.integers(0, 2**64 - 2**20),
    ),
)
def test_drawn(
    program: Path, mode: str, num_ranks: int, parts: int, capacity: int, epoch: int
) -> None:
    run(program, "exchange", mode, num_ranks, parts, capacity, 12, epoch)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_nvcc(arch: str, tmp_path: Path) -> None:
    """Templates that nothing instantiates are not compiled by the header tests."""
    nvcc = find_nvcc()
    if nvcc is None:
        pytest.skip("no nvcc (the CUDA toolkit's compiler)")
    source = ROOT / "tests" / "cpp" / "ll_buffer_device.cu"
    command = [nvcc, "-std=c++20", f"-arch={arch}", "-Werror", "all-warnings"]
    command += [
        f"-I{ROOT / 'csrc' / 'include'}",
        "-c",
        str(source),
        "-o",
        str(tmp_path / "device.o"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=380)
    assert done.returncode == 0, done.stdout + done.stderr
