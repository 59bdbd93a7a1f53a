"""The examples build against llcoll.include_path() and give torch's results, on the CPU."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")


def run(*arguments: object, limit: float) -> str:
    path = os.pathsep.join([str(ROOT / "python"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(EXAMPLES / "run.py"), *map(str, arguments)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=limit, env=environment, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("examples")
    return Path(run("--build-only", folder, limit=400).splitlines()[-1])


# The first test pays for the compilation.
@pytest.mark.timeout(700)
@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_examples(library: Path, num_ranks: int) -> None:
    printed = run("--library", library, "--ranks", num_ranks, limit=280)
    assert printed.count("60 calls right") == num_ranks


def test_kernels_are_short() -> None:
    """What the documentation promises."""
    for name in ("one_shot_all_reduce.h", "bias_gelu.h"):
        assert len((EXAMPLES / name).read_text().splitlines()) < 50
