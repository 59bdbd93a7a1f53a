"""Conditions that broke other libraries' collectives, on the CPU. tests/gpu/broke.py has them, and
runs them on GPUs as well; the numbers are those of docs/failures.md."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from harness import DEVICE, Ranks

PROGRAM = Path(__file__).parent / "gpu" / "broke.py"
PARTS = [
    node.name
    for node in ast.parse(PROGRAM.read_text()).body
    if isinstance(node, ast.FunctionDef) and node.name[:1] == "n" and node.name[1:3].isdigit()
]
GPU_ALONE = {"n06_early_trigger"}  # on the CPU: csrc/sim/mutants.h, tests/test_sim_mutants.py

pytestmark = pytest.mark.skipif(DEVICE != "cpu", reason="tests/gpu.sh runs them on GPUs")


def test_every_number_is_here() -> None:
    """8 is the fused operator's: it has its own tests."""
    assert [int(name[1:3]) for name in PARTS] == [n for n in range(1, 20) if n != 8]


def test_all_of_them() -> None:
    names = [name for name in PARTS if name not in GPU_ALONE]
    with Ranks(4, env={"OMP_NUM_THREADS": "1"}) as ranks:
        failed = {}
        for name in names:
            outcomes = ranks.run("jobs_broke", "run_part", name, timeout=100)
            bad = [str(outcome) for outcome in outcomes if outcome.kind != "value"]
            if bad:
                failed[name] = bad[0]
                break  # the ranks are not in step any more
        assert not failed, "\n".join(f"{name}: {text}" for name, text in failed.items())
