"""Cost of a call at 8 bytes, at world sizes 1 and 2 on the CPU, and memory that calls leave behind.

    python benchmarks/op_cost.py [--growth-calls 1000000]

World size 1 shows what the dispatcher and the checks cost, 2 adds the exchange. The growth check
exits 1 where resident memory of any rank grew by more than 1 byte a call.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

LIMIT_S = 900
NUM_BATCHES = 21
# The allocator's own arenas move by whole pages: less than this is not growth.
SLACK_BYTES = 512 << 10


def resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def make_calls() -> dict[str, Callable[[], Any]]:
    import torch

    import llcoll

    x, out = torch.zeros(2), torch.zeros(2)
    with_grad = torch.zeros(2, requires_grad=True)
    ops = torch.ops.llcoll
    plan = llcoll.plan(x)

    def raising() -> None:
        try:
            ops.all_reduce_(x, "no such operator")
        except RuntimeError:
            return
        raise SystemExit("an unknown operator did not raise")

    return {
        "plan()": plan,
        "plan.run()": plan.run,
        "all_reduce_.default(x)": partial(ops.all_reduce_.default, x),
        "all_reduce_(x)": partial(ops.all_reduce_, x),
        'all_reduce_(x, "sum", algorithm="auto")': partial(
            ops.all_reduce_, x, "sum", algorithm="auto"
        ),
        "llcoll.all_reduce_(x)": partial(llcoll.all_reduce_, x),
        "all_reduce.default(x)": partial(ops.all_reduce.default, x),
        "all_reduce.default(x) with gradient": partial(ops.all_reduce.default, with_grad),
        "llcoll.all_reduce(x)": partial(llcoll.all_reduce, x),
        "all_reduce_out.default(x, out=)": partial(ops.all_reduce_out.default, x, out=out),
        "torch clone (for scale)": partial(torch.clone, x),
        "call that raises": raising,
    }


def time_us(call: Callable[[], Any], per_batch: int) -> float:
    for _ in repeat(None, per_batch):
        call()
    batches = []
    gc.disable()
    for _ in range(NUM_BATCHES):
        start = time.perf_counter_ns()
        for _ in repeat(None, per_batch):
            call()
        batches.append((time.perf_counter_ns() - start) / per_batch / 1000)
    gc.enable()
    return statistics.median(batches)


def growth(call: Callable[[], Any], num_calls: int) -> int:
    """Bytes of resident memory added by `num_calls` calls, after as many as fill the caches."""
    for _ in repeat(None, num_calls // 10):
        call()
    gc.collect()
    before = resident_bytes()
    for _ in repeat(None, num_calls):
        call()
    gc.collect()
    return resident_bytes() - before


def worker(args: argparse.Namespace) -> int:
    import torch
    import torch.distributed as dist

    import llcoll

    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    dist.init_process_group(
        "gloo", init_method=f"file://{args.rendezvous}", rank=rank, world_size=world_size
    )
    llcoll.init()
    result: dict[str, dict[str, float]] = {}
    for name, call in make_calls().items():
        num_calls = args.growth_calls
        if name == "call that raises":
            num_calls = min(num_calls, 20000)
        figures: dict[str, float] = {"us": time_us(call, args.per_batch)}
        if num_calls:
            figures |= {"grew": growth(call, num_calls), "calls": num_calls}
        result[name] = figures
    gathered: list[Any] = [None] * world_size
    dist.all_gather_object(gathered, result)
    if rank == 0:
        print(json.dumps(gathered))
    llcoll.shutdown()
    dist.destroy_process_group()
    return 0


def launch(world_size: int, args: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    command = [sys.executable, __file__, "--rendezvous", str(folder / f"store-{world_size}")]
    command += ["--growth-calls", str(args.growth_calls), "--per-batch", str(args.per_batch)]
    ranks = [
        subprocess.Popen(
            command,
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(world_size)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(world_size)
    ]
    try:
        outputs = [rank.communicate(timeout=LIMIT_S)[0] for rank in ranks]
    finally:
        for rank in ranks:
            if rank.poll() is None:
                rank.kill()
    if any(rank.returncode for rank in ranks):
        raise SystemExit(f"world size {world_size}: exit {[rank.returncode for rank in ranks]}")
    gathered: list[dict[str, Any]] = json.loads(outputs[0].splitlines()[-1])
    return gathered


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--growth-calls", type=int, default=1_000_000, help="0: no growth check")
    parser.add_argument("--per-batch", type=int, default=2000)
    parser.add_argument("--world-sizes", default="1,2")
    parser.add_argument("--rendezvous", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rendezvous:
        return worker(args)
    grown = []
    with tempfile.TemporaryDirectory() as folder:
        for world_size in map(int, args.world_sizes.split(",")):
            gathered = launch(world_size, args, Path(folder))
            print(f"world size {world_size:<34} us per call  grew, bytes per call")
            for name in gathered[0]:
                figures = [ranks[name] for ranks in gathered]
                us = max(figure["us"] for figure in figures)
                row = f"  {name:<45} {us:>9.3f}"
                if "grew" in figures[0]:
                    grew = max(figure["grew"] for figure in figures)
                    calls = figures[0]["calls"]
                    row += f"  {grew:>9.0f}  {grew / calls:.3f}"
                    if grew > calls + SLACK_BYTES:
                        grown.append(f"{name} at world size {world_size}")
                print(row, flush=True)
    if grown:
        print("memory grew in: " + ", ".join(grown))
    return 1 if grown else 0


if __name__ == "__main__":
    sys.exit(main())
