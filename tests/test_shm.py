"""Compiles and runs the C++ tests of the CPU backend's shared-memory set-up."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CPP = ROOT / "tests" / "cpp"
SOURCES = [
    "check.cpp",
    *(f"cpu/{name}.cpp" for name in ("shm", "rendezvous", "exchange", "announcement", "socket")),
]
FLAGS = ["-std=c++20", "-O0", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined"]
CASES = [
    (program, name)
    for program in ("shm_test", "exchange_test")
    for name in re.findall(
        r"^    TEST\((\w+)\),$", (CPP / f"{program}.cpp").read_text(), re.MULTILINE
    )
]

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")


def compile_with(*arguments):
    command = [
        "g++",
        *FLAGS,
        f"-I{ROOT / 'csrc'}",
        f"-I{ROOT / 'csrc' / 'include'}",
        *map(str, arguments),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shm")
    objects = []
    for source in SOURCES:
        objects.append(folder / f"{Path(source).stem}.o")
        compile_with("-c", ROOT / "csrc" / source, "-o", objects[-1])
    built = {}
    for program in ("shm_test", "exchange_test"):
        built[program] = folder / program
        compile_with(CPP / f"{program}.cpp", *objects, "-o", built[program], "-pthread")
    return built


# The first test pays for the compilation.
@pytest.mark.timeout(420)
@pytest.mark.parametrize(("program", "name"), CASES)
def test_shm(programs, program, name):
    done = subprocess.run([programs[program], name], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_all_tests_are_listed(programs):
    listed = []
    for program, path in programs.items():
        done = subprocess.run(
            [path, "--list"], capture_output=True, text=True, timeout=60, check=True
        )
        listed += [(program, name) for name in done.stdout.split()]
    assert listed == CASES
