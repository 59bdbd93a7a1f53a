"""Groups that span nodes, simulated on the ranks of one host: bits, forms, graphs refused, times.

    python -m llcoll.loopback -n 4 tests/gpu/nodes.py --nodes 2

Inside a node llcoll's CUDA backend, between them Gloo through host memory. The checks are those of
tests/test_nodes.py, on the GPU.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jobs_nodes
import torch
import torch.distributed as dist

import llcoll
from llcoll import topology

TYPES = ("float32", "bfloat16", "float16", "float8_e4m3fn", "int8", "int32", "bool")
SIZES = [128, 4096, 65536, 1 << 20, 16 << 20]


def graphs_are_refused() -> list[str]:
    x = torch.ones(256, device="cuda")
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            torch.ops.llcoll.all_reduce_(x)
    except RuntimeError as error:
        return [] if "cannot be captured in a CUDA graph" in str(error) else [str(error)]
    return ["a graph was captured"]


def median_us(call, repeats: int = 15) -> float:  # type: ignore[no-untyped-def]
    times = []
    for _ in range(repeats):
        llcoll.barrier()
        torch.cuda.synchronize()
        began = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return 1e6 * statistics.median(times[3:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", default="2")
    args = parser.parse_args()
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    os.environ["LLCOLL_NODES"] = args.nodes
    nodes = topology.parse(args.nodes, world, "--nodes")
    state = {"rank": rank, "world_size": world, "device": "cuda"}
    wrong: list[str] = []
    with llcoll.init(device="cuda", policy="invariant", timeout=20) as communicator:
        assert communicator.nodes == nodes, communicator.nodes
        cases = [
            (dtype, op, numel, algorithm)
            for dtype in TYPES
            for op in ("sum", "avg", "max")
            if (dtype, op) != ("bool", "avg")
            for numel, algorithm in ((997, "leaders"), (997, "lanes"), (60_001, "auto"))
        ]
        wrong += jobs_nodes.reduce_cases(state, nodes, cases)
        wrong += jobs_nodes.copy_cases(state, [1, 5000], ["leaders", "lanes"])
    with llcoll.init(device="cuda", timeout=20):
        wrong += jobs_nodes.forms(state)
        wrong += graphs_are_refused()
        lines = []
        for num_bytes in SIZES:
            x = torch.zeros(num_bytes // 4, device="cuda")
            cells = [median_us(lambda: dist.all_reduce(x))]  # noqa: B023
            cells += [
                median_us(lambda: llcoll.all_reduce_(x, algorithm=a))  # noqa: B023
                for a in ("auto", "leaders", "lanes")
            ]
            lines.append(f"{num_bytes:>9} " + " ".join(f"{us:>9.0f}" for us in cells))
    failed = torch.tensor(len(wrong))
    dist.all_reduce(failed)
    print(f"rank {rank}: {len(wrong)} wrong {wrong[:5]}", flush=True)
    if rank == 0:
        print(f"nodes {nodes}, float32 all-reduce, median us")
        print("    bytes      flat      auto   leaders     lanes")
        print("\n".join(lines), flush=True)
    dist.barrier()
    dist.destroy_process_group()
    if failed.item():
        sys.exit(f"FAILED: {int(failed.item())} wrong results over all ranks")


main()
