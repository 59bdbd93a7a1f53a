"""A rank of the tests over several hosts: `host_worker.py OUT GO NODES`, under torchrun.

Writes what it found to OUT/RANK.json; then, once the file GO is there, calls until one fails and
writes OUT/RANK.failed.json.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import jobs_nodes
import torch
import torch.distributed as dist

import llcoll


def write(path: Path, value: Any) -> None:
    part = path.with_suffix(".part")
    part.write_text(json.dumps(value))
    part.replace(path)


def main() -> None:
    out, go, nodes = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    state = {"rank": dist.get_rank(), "world_size": dist.get_world_size(), "device": "cpu"}
    rank = state["rank"]
    found: dict[str, Any] = {}
    ragged_ranks = [r for node in nodes for r in node][:-1]
    ragged_group = dist.new_group(ragged_ranks)
    with llcoll.init(policy="invariant", timeout=30) as whole:
        found["nodes"] = whole.nodes
        cases = [
            (dtype, op, numel, algorithm)
            for dtype, op in (("float32", "sum"), ("bfloat16", "avg"), ("int32", "max"))
            for numel in (5, 3000, 400_000)
            for algorithm in ("auto", "leaders", "lanes")
        ]
        found["wrong"] = jobs_nodes.reduce_cases(state, nodes, cases)
        found["wrong"] += jobs_nodes.copy_cases(state, [3, 5000], ["auto", "lanes"])
    found["groups"] = jobs_nodes.subgroups(state, nodes)
    if rank in ragged_ranks:
        ragged = llcoll.init(ragged_group, device="cpu", timeout=30)
        x = torch.arange(50_000, dtype=torch.float64) + rank
        total = llcoll.all_reduce(x, group=ragged)
        want = len(ragged_ranks) * torch.arange(50_000, dtype=torch.float64) + sum(ragged_ranks)
        found["ragged"] = [ragged.nodes, torch.equal(total, want)]
    llcoll.init(timeout=2.5)
    llcoll.barrier()
    write(out / f"{rank}.json", found)
    # All ranks leave the loop at the same call, whenever each sees the file.
    seen = torch.zeros(2000)
    while not seen[0]:
        llcoll.all_reduce_(seen.fill_(float(go.exists())), "max")
        time.sleep(0.02)
    write(out / f"{rank}.failed.json", jobs_nodes.until_error(state, 200_000, "auto", 30))
    os._exit(0)  # nobody to say good-bye to


main()
