"""C++ tests of zero copy, 8-byte packets and multicast: threads as ranks, no GPU."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CPP = ROOT / "tests" / "cpp"
PROGRAMS = ("pull_test", "narrow_test", "multicast_test")
CASES = [
    (program, case)
    for program in PROGRAMS
    for case in re.findall(r"TEST\((\w+)\),", (CPP / f"{program}.cpp").read_text())
]
FLAGS = ["-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-psabi", "-pthread"]

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")


def build(name: str, target: Path, *flags: str) -> Path:
    folders = [f"-I{ROOT / 'csrc'}", f"-I{ROOT / 'csrc' / 'include'}"]
    sources = [str(CPP / f"{name}.cpp"), str(ROOT / "csrc" / "check.cpp")]
    command = ["g++", *FLAGS, *flags, *folders, *sources, "-o", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return target


def run(program: Path, case: str) -> None:
    done = subprocess.run([program, case], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("programs")
    return {name: build(name, folder / name) for name in PROGRAMS}


@pytest.fixture(scope="module")
def checked_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Under the thread sanitizer, which knows the words' release and acquire, and nothing else."""
    target = tmp_path_factory.mktemp("checked") / "pull_test"
    return build("pull_test", target, "-fsanitize=thread", "-Wno-tsan")


@pytest.mark.timeout(420)
@pytest.mark.parametrize(("name", "case"), CASES)
def test_threads_as_ranks(programs: dict[str, Path], name: str, case: str) -> None:
    run(programs[name], case)


@pytest.mark.timeout(420)
@pytest.mark.parametrize("case", ["mixed_2", "chunks_2", "chunks_symmetric"])
def test_no_data_race(checked_program: Path, case: str) -> None:
    run(checked_program, case)
