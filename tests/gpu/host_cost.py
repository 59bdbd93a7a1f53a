"""What a call costs the host: us until it returns, the GPU's work left out.

    python -m llcoll.loopback -n 2 tests/gpu/host_cost.py

Batches are shorter than the launch queue, so no call waits for the GPU; candidates are interleaved
and the figure is the median over batches, the slowest rank's.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from common import end, ops, parser, start
from torch.distributed import _symmetric_memory as symmetric_memory

import llcoll

CALLS_PER_BATCH = 150
EMPTY = "empty kernel (torch.cuda._sleep(0))"
TORCH = "torch one_shot_all_reduce"


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--batches", type=int, default=40)
    args = arguments.parse_args()
    world = start(args)
    x = torch.ones(64, dtype=torch.bfloat16, device=world.device)
    out = torch.empty_like(x)
    plan = llcoll.plan(x, out=out)
    raw, raw_, raw_out = (
        op.default for op in (ops.all_reduce, ops.all_reduce_, ops.all_reduce_out)
    )
    calls: dict[str, Callable[[], object]] = {
        "llcoll op all_reduce": lambda: raw(x),
        "llcoll op all_reduce_": lambda: raw_(x),
        "llcoll op all_reduce_out": lambda: raw_out(x, out=out),
        "llcoll.all_reduce": lambda: llcoll.all_reduce(x),
        "llcoll.all_reduce_": lambda: llcoll.all_reduce_(x),
        "llcoll plan()": plan,
        "llcoll plan.run()": plan.run,
    }
    if world.on_gpu:
        group_name = dist.group.WORLD.group_name
        buffer = symmetric_memory.empty(64, dtype=torch.bfloat16, device=world.device)
        symmetric_memory.rendezvous(buffer, group_name)
        buffer.fill_(1)
        theirs = torch.ops.symm_mem.one_shot_all_reduce.default
        calls[TORCH] = lambda: theirs(buffer, "sum", group_name)
        calls[EMPTY] = lambda: torch.cuda._sleep(0)
    calls["Python call alone"] = lambda: None

    batches: dict[str, list[float]] = {name: [] for name in calls}
    for idx in range(args.batches + 2):
        for name, call in calls.items():
            x.fill_(0)  # sums in place neither grow nor overflow
            world.sync()
            begin = time.perf_counter()
            for _ in range(CALLS_PER_BATCH):
                call()
            elapsed = time.perf_counter() - begin
            world.sync()
            if idx >= 2:
                batches[name].append(elapsed * 1e6 / CALLS_PER_BATCH)
    figures = torch.tensor([statistics.median(values) for values in batches.values()])
    dist.all_reduce(figures, op=dist.ReduceOp.MAX)
    us = dict(zip(calls, figures.tolist(), strict=True))
    width = max(map(len, us))
    world.say(f"host us per call, {world.size} ranks, 128 B bf16, {args.batches} batches")
    for name, value in us.items():
        world.say(f"  {name:<{width}} {value:7.2f}")
    if TORCH in us:
        op_excess = us["llcoll op all_reduce"] - us[TORCH]
        plan_excess = us["llcoll plan()"] - us[EMPTY]
        world.say(f"all_reduce - torch's {op_excess:+.2f} us; plan - empty {plan_excess:+.2f} us")
    path = os.environ.get("OUT")
    if path and world.rank == 0:
        Path(path, f"host_{world.size}.json").write_text(json.dumps({"version": 1, "us": us}))
    return end(world)


if __name__ == "__main__":
    sys.exit(main())
