"""What the process-group backend "llcoll" costs over the op: us per call of dist.all_reduce.

torchrun --nproc-per-node 2 benchmarks/backend_cost.py

CPU; interleaved; the slower rank's medians.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

import llcoll

SIZES = (8, 1 << 10, 16 << 10, 256 << 10)
ROUNDS, CALLS = 15, 200


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("llcoll")
    gloo = dist.new_group(backend="gloo")
    op = torch.ops.llcoll.all_reduce_.default
    if dist.get_rank() == 0:
        print(f"{'bytes':>8}  {'op':>8}  {'llcoll':>8}  {'gloo':>8}   us per call, float32")
    for num_bytes in SIZES:
        x = torch.zeros(num_bytes // 4)
        dist.all_reduce(x)
        calls: list[Callable[[], object]] = [
            lambda x=x: op(x),
            lambda x=x: dist.all_reduce(x),
            lambda x=x: dist.all_reduce(x, group=gloo),
        ]
        figures: list[list[float]] = [[] for _ in calls]
        for _ in range(ROUNDS):
            for call, values in zip(calls, figures, strict=True):
                llcoll.barrier()
                start = time.perf_counter()
                for _ in range(CALLS):
                    call()
                values.append((time.perf_counter() - start) / CALLS * 1e6)
        medians = torch.tensor([statistics.median(values) for values in figures])
        dist.all_reduce(medians, op=dist.ReduceOp.MAX, group=gloo)
        if dist.get_rank() == 0:
            a, b, c = medians.tolist()
            print(f"{num_bytes:8}  {a:8.2f}  {b:8.2f}  {c:8.2f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
