"""Compiles and runs the C++ tests of the pulling flag algorithms: threads as ranks, no GPU."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "tests" / "cpp" / "pull_test.cpp"
CASES = re.findall(r"^    TEST\((\w+)\),$", SOURCE.read_text(), re.MULTILINE)
FLAGS = ["-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-psabi", "-pthread"]

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")


def build(target: Path, *flags: str) -> Path:
    folders = [f"-I{ROOT / 'csrc'}", f"-I{ROOT / 'csrc' / 'include'}"]
    sources = [str(SOURCE), str(ROOT / "csrc" / "check.cpp")]
    command = ["g++", *FLAGS, *flags, *folders, *sources, "-o", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return target


def run(program: Path, case: str) -> None:
    done = subprocess.run([program, case], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("pull") / "pull_test")


@pytest.fixture(scope="module")
def checked_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Under the thread sanitizer, which knows the words' release and acquire, and nothing else."""
    target = tmp_path_factory.mktemp("pull_tsan") / "pull_test"
    return build(target, "-fsanitize=thread", "-Wno-tsan")


@pytest.mark.timeout(420)
@pytest.mark.parametrize("case", CASES)
def test_pull(program: Path, case: str) -> None:
    run(program, case)


@pytest.mark.timeout(420)
@pytest.mark.parametrize("case", ["mixed_2", "chunks_2", "chunks_symmetric"])
def test_no_data_race(checked_program: Path, case: str) -> None:
    run(checked_program, case)
