"""A rank of benchmarks/nodes.py: flat torch.distributed against llcoll, in turns, in one process.

    nodes_worker.py OUT SECONDS

Rank 0 writes OUT: for each size and contender the median time of a call in us, and the paired
ratios to the flat call.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import llcoll

SIZES = [128 << (3 * i) for i in range(6)] + [16 << 20]  # 128 B ... 4 MiB, 16 MiB
MIN_ROUNDS, MAX_ROUNDS = 5, 40


def contenders(x: torch.Tensor) -> dict[str, Callable[[], Any]]:
    found: dict[str, Callable[[], Any]] = {"flat": lambda: dist.all_reduce(x)}
    for algorithm in ("auto", "leaders", "lanes"):
        if algorithm == "leaders" and x.numel() * x.element_size() > 4 << 20:
            continue
        found[algorithm] = lambda algorithm=algorithm: llcoll.all_reduce_(x, algorithm=algorithm)
    return found


def ping_pong() -> float:
    """Half a round trip of 8 bytes between the first ranks of the first two nodes, us."""
    nodes = llcoll.communicator.find().nodes
    a, b = nodes[0][0], nodes[1][0] if len(nodes) > 1 else nodes[0][-1]
    rank, x = dist.get_rank(), torch.zeros(2)
    times = []
    for _ in range(60):
        began = time.perf_counter()
        if rank == a:
            dist.send(x, b)
            dist.recv(x, b)
        elif rank == b:
            dist.recv(x, a)
            dist.send(x, a)
        times.append(time.perf_counter() - began)
    return 1e6 * statistics.median(times[10:]) / 2


def measure(calls: dict[str, Callable[[], Any]], seconds: float) -> dict[str, list[float]]:
    """Rounds of one call each, until the time is up; all ranks stop after the same round."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
        call()
    deadline = time.perf_counter() + seconds
    for number in range(MAX_ROUNDS):
        for name, call in calls.items():
            llcoll.barrier()
            began = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - began)
        go_on = torch.tensor(int(number + 1 < MIN_ROUNDS or time.perf_counter() < deadline))
        dist.broadcast(go_on, 0)
        if not go_on:
            break
    # A call lasts until the last rank has its result.
    for name, mine in times.items():
        slowest = torch.tensor(mine, dtype=torch.float64)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        times[name] = slowest.tolist()
    return times


def main() -> None:
    out, seconds = Path(sys.argv[1]), float(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    communicator = llcoll.init()
    one_way = ping_pong()
    rows = []
    for num_bytes in SIZES:
        x = torch.zeros(num_bytes // 4)
        times = measure(contenders(x), seconds / len(SIZES))
        ratios = [a / f for a, f in zip(times["auto"], times["flat"], strict=True)]
        rows.append(
            {
                "bytes": num_bytes,
                "rounds": len(ratios),
                "us": {name: 1e6 * statistics.median(t) for name, t in times.items()},
                "least_us": {name: 1e6 * min(t) for name, t in times.items()},
                "auto_to_flat": statistics.median(ratios),
            }
        )
    if dist.get_rank() == 0:
        found = {"nodes": communicator.nodes, "one_way_us": one_way, "rows": rows}
        out.write_text(json.dumps(found))
    llcoll.barrier()
    llcoll.shutdown()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
