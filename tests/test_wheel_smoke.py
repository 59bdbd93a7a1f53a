"""A short run that needs only pytest, torch and llcoll: CI repeats it on other torches."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

WORLD = 2
TIMEOUT = 120.0

RANK = """
import os, sys
import torch
import torch.distributed as dist
import llcoll

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
store = dist.FileStore(sys.argv[1], world)
dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
llcoll.init()
for algorithm in ("auto", "one_shot_ll", "one_shot_sentinel", "two_shot_ll", "two_shot_flag"):
    for dtype in (torch.float32, torch.bfloat16):
        for numel in (1, 7, 1024, 100003):
            base = torch.arange(numel, dtype=torch.float32).remainder(64).to(dtype)
            x = base + rank
            expected = base * world + sum(range(world))
            got = torch.ops.llcoll.all_reduce(x, "sum", "", algorithm=algorithm)
            assert torch.equal(got, expected), (algorithm, dtype, numel)
            torch.ops.llcoll.all_reduce_(x, "sum", "", algorithm=algorithm)
            assert torch.equal(x, expected), (algorithm, dtype, numel)
x = torch.full((16,), float(rank + 1))
plan = llcoll.plan(x)
plan()
assert torch.equal(x, torch.full((16,), float(sum(range(1, world + 1)))))
llcoll.shutdown()
dist.destroy_process_group()
print("rank", rank, "of", world, "passed with torch", torch.__version__)
"""


@pytest.mark.wheel
def test_public_headers() -> None:
    import llcoll

    assert (Path(llcoll.include_path()) / "llcoll" / "types.h").is_file()


@pytest.mark.wheel
def test_two_ranks_all_reduce(tmp_path: Path) -> None:
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(tmp_path / "store")],
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(WORLD)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(WORLD)
    ]
    try:
        outputs = [process.communicate(timeout=TIMEOUT)[0] for process in ranks]
    finally:
        for process in ranks:
            if process.poll() is None:
                process.kill()
                process.wait()
    for process, output in zip(ranks, outputs, strict=True):
        assert process.returncode == 0, output
        assert "passed with torch" in output
