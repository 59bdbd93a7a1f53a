"""Hostile bytes in set-up messages, under the address and undefined-behaviour sanitizers.

LLCOLL_FUZZ_SECONDS (default 3) bounds the run. The same source is a libFuzzer target:
clang++ -fsanitize=fuzzer,address,undefined without -DLLCOLL_OWN_DRIVER.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = ["csrc/check.cpp"] + [
    f"csrc/cpu/{name}.cpp" for name in ("shm", "rendezvous", "announcement", "socket")
]
SECONDS = os.environ.get("LLCOLL_FUZZ_SECONDS", "3")


@pytest.mark.timeout(420)
@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
def test_control_messages(tmp_path: Path) -> None:
    program = tmp_path / "control_fuzz"
    command = ["g++", "-std=c++20", "-O1", "-g", "-fsanitize=address,undefined"]
    command += ["-fno-sanitize-recover=all", "-DLLCOLL_OWN_DRIVER"]
    command += [f"-I{ROOT / 'csrc'}", f"-I{ROOT / 'csrc' / 'include'}"]
    command += [str(ROOT / "tests/cpp/control_fuzz.cpp"), *(str(ROOT / s) for s in SOURCES)]
    built = subprocess.run(
        [*command, "-o", str(program)], capture_output=True, text=True, timeout=300
    )
    assert built.returncode == 0, built.stderr
    run = subprocess.run([program, SECONDS, "1"], capture_output=True, text=True, timeout=100)
    assert run.returncode == 0, run.stdout + run.stderr
    inputs = re.fullmatch(r"(\d+) inputs\n", run.stdout)
    assert inputs and int(inputs[1]) > 1000
