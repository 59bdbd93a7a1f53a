"""Compiles and runs the C++ tests of two-shot LL128, where a lock per line stands for the GPU's L2."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "tests" / "cpp" / "ll128_test.cpp"
NAMES = re.findall(r"^    TEST\((\w+)\),$", SOURCE.read_text(), re.MULTILINE)
FLAGS = [
    *("-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function"),
    "-fsanitize=address,undefined",
]

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ll128") / "ll128_test"
    includes = [f"-I{ROOT / 'csrc'}", f"-I{ROOT / 'csrc' / 'include'}"]
    sources = [str(SOURCE), str(ROOT / "csrc" / "check.cpp")]
    command = ["g++", *FLAGS, *includes, *sources, "-o", str(path), "-pthread"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    return path


# The first test pays for the compilation.
@pytest.mark.timeout(620)
@pytest.mark.parametrize("name", NAMES)
def test_ll128(program: Path, name: str) -> None:
    done = subprocess.run([program, name], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_all_tests_are_listed(program: Path) -> None:
    listed = subprocess.run(
        [program, "--list"], capture_output=True, text=True, timeout=60, check=True
    )
    assert listed.stdout.split() == NAMES
