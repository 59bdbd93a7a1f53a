"""The reproductions of the paper's figures run and write what they promise. Small, on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SMALL = {
    "fig3_barrier": ["-n", "20"],
    "fig11_latency": ["-e", "2K", "-f", "16", "-n", "20", "--compare", "gloo,nccl"],
    "fig12_scratch": ["--scratch", "1M,4M", "--message", "64K"],
    "fig13_decode": ["--steps", "1", "--batch", "2", "--context", "16"],
    "fig14_cg": ["--grid", "16", "--iterations", "4"],
}
WORDS = {
    "fig3_barrier": "llcoll.barrier",
    "fig11_latency": "Missing: nccl",
    "fig12_scratch": "1 MiB",
    "fig13_decode": "tokens/s",
    "fig14_cg": "GFLOP/s per rank",
}


@pytest.mark.parametrize("name", sorted(SMALL))
def test_figure(name: str, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "python"), os.environ.get("PYTHONPATH", "")]),
        "LLCOLL_TUNING_FILE": "none",
    }
    script = str(ROOT / "benchmarks" / f"{name}.py")
    result = subprocess.run(
        [sys.executable, script, "--device", "cpu", "--out", str(tmp_path), *SMALL[name]],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-3000:]
    table = (tmp_path / f"{name}.md").read_text()
    assert WORDS[name] in table and "CPU shared memory" in table and " UTC" in table
    data = json.loads((tmp_path / f"{name}.json").read_text())
    assert data["version"] == 1 and data["results"]["2"]["about"]["date"]
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
