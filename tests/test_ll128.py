"""Compiles and runs the C++ tests of two-shot LL128 and of the paper's table I.

A lock per line stands for what the GPU's L2 does.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CPP = ROOT / "tests" / "cpp"
PROGRAMS = ("ll128_test", "table1_test")
CASES = [
    (program, name)
    for program in PROGRAMS
    for name in re.findall(r"\bTEST\((\w+)\)", (CPP / f"{program}.cpp").read_text())
]
FLAGS = [
    *("-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function"),
    "-fsanitize=address,undefined",
]

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("ll128")
    includes = [f"-I{ROOT / 'csrc'}", f"-I{ROOT / 'csrc' / 'include'}"]
    for program in PROGRAMS:
        sources = [str(CPP / f"{program}.cpp"), str(ROOT / "csrc" / "check.cpp")]
        command = ["g++", *FLAGS, *includes, *sources, "-o", str(folder / program), "-pthread"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=500)
        assert done.returncode == 0, done.stderr
    return {program: folder / program for program in PROGRAMS}


# The first test pays for the compilation.
@pytest.mark.timeout(1100)
@pytest.mark.parametrize(("program", "name"), CASES)
def test_ll128(programs: dict[str, Path], program: str, name: str) -> None:
    done = subprocess.run([programs[program], name], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_all_tests_are_listed(programs: dict[str, Path]) -> None:
    listed = []
    for program, path in programs.items():
        done = subprocess.run(
            [path, "--list"], capture_output=True, text=True, timeout=60, check=True
        )
        listed += [(program, name) for name in done.stdout.split()]
    assert listed == CASES
