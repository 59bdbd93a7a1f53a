"""torch.distributed's NCCL backend, unchanged, with the front before its NCCL: results and times.

Under the loopback launcher, with NCCL 2.30 or newer: front.py --nccl .../libnccl.so.2 [--json F].
Each rank starts itself again by llcoll.nccl's way: with the front, then with one that takes
nothing, for the times of NCCL alone.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

SIZES = [1, 1000, 65536]  # elements that llcoll takes
LARGE = 1 << 20  # float32 elements: NCCL's
TIMED_BYTES = [8, 1024, 16384, 65536, 1 << 18]
LIMIT_S = 60
HOST_CALLS = 100  # enqueued in a row: fewer than a stream takes without waiting


def value(torch, rank: int, numel: int, dtype):
    """1, 2 or 3: exact in every type for the sums and products of up to 4 ranks."""
    return ((torch.arange(numel, device="cuda") * 7 + rank * 3) % 3 + 1).to(dtype)


def check_reductions(torch, dist, rank: int, world: int) -> int:
    ops = {"SUM": torch.sum, "PRODUCT": torch.prod, "MIN": torch.amin, "MAX": torch.amax}
    dtypes = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
    dtypes += [torch.int8, torch.uint8, torch.int32, torch.int64]
    num_checked = 0
    for dtype in dtypes:
        for numel in SIZES:
            inputs = torch.stack([value(torch, r, numel, torch.float64) for r in range(world)])
            for name, reduce in ops.items():
                expected = reduce(inputs, 0).to(dtype)
                x = value(torch, rank, numel, dtype)
                dist.all_reduce(x, op=getattr(dist.ReduceOp, name))
                assert torch.equal(x, expected), (dtype, numel, name)
                root = num_checked % world
                x = value(torch, rank, numel, dtype)
                dist.reduce(x, root, op=getattr(dist.ReduceOp, name))
                assert rank != root or torch.equal(x, expected), (dtype, numel, name, "reduce")
                num_checked += 2
            x = value(torch, rank, numel, dtype)
            everything = torch.empty(world * numel, dtype=dtype, device="cuda")
            dist.all_gather_into_tensor(everything, x)
            gathered = torch.cat([value(torch, r, numel, dtype) for r in range(world)])
            assert torch.equal(everything, gathered), (dtype, numel, "all_gather")
            part = torch.empty(numel, dtype=dtype, device="cuda")
            dist.reduce_scatter_tensor(part, everything)
            assert torch.equal(part, world * x), (dtype, numel, "reduce_scatter")
            dist.broadcast(x, world - 1)
            assert torch.equal(x, value(torch, world - 1, numel, dtype)), (
                dtype,
                numel,
                "broadcast",
            )
            num_checked += 3
    large = value(torch, rank, LARGE, torch.float32)
    dist.all_reduce(large)
    expected = sum(value(torch, r, LARGE, torch.float32) for r in range(world))
    assert torch.equal(large, expected)
    return num_checked + 1


def check_groups_streams_graphs(torch, dist, rank: int, world: int) -> None:
    # A mixed group: p2p stays with NCCL, the all-reduce beside it goes to llcoll.
    mine = torch.full((4,), float(rank), device="cuda")
    theirs = torch.empty_like(mine)
    operations = [
        dist.P2POp(dist.isend, mine, (rank + 1) % world),
        dist.P2POp(dist.irecv, theirs, (rank - 1) % world),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert torch.equal(theirs, torch.full_like(mine, float((rank - 1) % world)))
    # A second communicator, and two in turn on one stream.
    other = dist.new_group(list(range(world)))
    x = torch.ones(256, device="cuda")
    for _ in range(20):
        dist.all_reduce(x)
        dist.all_reduce(x, group=other)
        x /= world * world
    assert torch.equal(x, torch.ones_like(x))
    # Several streams of one communicator.
    streams = [torch.cuda.Stream() for _ in range(3)]
    torch.cuda.synchronize()
    tensors = [torch.full((64,), float(i), device="cuda") for i in range(3)]
    torch.cuda.synchronize()
    for _ in range(10):
        for i, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                dist.all_reduce(tensors[i])
                tensors[i] /= world
    torch.cuda.synchronize()
    assert all(torch.equal(t, torch.full_like(t, float(i))) for i, t in enumerate(tensors))
    # Calls of llcoll's and of NCCL's by turns on several streams: one communicator, one order.
    mixed = [torch.full((n,), 1.0, device="cuda") for n in (64, LARGE, 4096)]
    torch.cuda.synchronize()
    for turn in range(12):
        for i in range(3):
            with torch.cuda.stream(streams[(i + turn) % 3]):
                dist.all_reduce(mixed[i])
                mixed[i] /= world
        for stream in streams:
            streams[0].wait_stream(stream)
        for stream in streams:
            stream.wait_stream(streams[0])
    torch.cuda.synchronize()
    assert all(torch.equal(t, torch.ones_like(t)) for t in mixed)
    graph = torch.cuda.CUDAGraph()
    y = torch.ones(64, device="cuda")
    with torch.cuda.graph(graph):
        for _ in range(4):
            dist.all_reduce(y)
    y.fill_(1)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(y, torch.full_like(y, float(world**4)))
    # Several streams of one capture, with nothing of the program's own between the calls.
    forked = torch.cuda.CUDAGraph()
    with torch.cuda.graph(forked):
        main = torch.cuda.current_stream()
        for stream in streams:
            stream.wait_stream(main)
        for _ in range(3):
            for i, stream in enumerate(streams):
                with torch.cuda.stream(stream):
                    dist.all_reduce(tensors[i])
        for stream in streams:
            main.wait_stream(stream)
    for _ in range(5):
        for i, t in enumerate(tensors):
            t.fill_(float(i + 1))
        forked.replay()
        torch.cuda.synchronize()
        expected = [torch.full_like(t, float((i + 1) * world**3)) for i, t in enumerate(tensors)]
        assert all(torch.equal(t, e) for t, e in zip(tensors, expected, strict=True))


def time_all_reduces(torch, dist) -> dict[str, dict[str, float]]:
    """us of one all-reduce of float32: in a graph of 20, and on the host until it returns."""
    results = {}
    for num_bytes in TIMED_BYTES:
        x = torch.zeros(num_bytes // 4, device="cuda")
        dist.all_reduce(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(20):
                dist.all_reduce(x)
        graph.replay()
        torch.cuda.synchronize()
        in_graph = []
        for _ in range(30):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            in_graph.append(begin.elapsed_time(end) * 1000 / 20)
        host = []
        for _ in range(20):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(HOST_CALLS):
                dist.all_reduce(x)
            host.append((time.perf_counter() - start) * 1e6 / HOST_CALLS)
        torch.cuda.synchronize()
        results[str(num_bytes)] = {
            "graph_us": statistics.median(in_graph),
            "host_us": statistics.median(host),
        }
    return results


def run_rank(json_path: Path, checks: bool, taken_only: bool) -> None:
    import torch
    import torch.distributed as dist

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    dist.init_process_group("nccl")
    num_checked = 0
    if checks:
        num_checked = check_reductions(torch, dist, rank, world)
        if not taken_only:
            check_groups_streams_graphs(torch, dist, rank, world)
    times = time_all_reduces(torch, dist)
    if rank == 0:
        json_path.write_text(json.dumps({"checked": num_checked, "times": times}))
    dist.destroy_process_group()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nccl", type=Path, required=True)
    parser.add_argument("--json", type=Path, default=Path("front.json"))
    parser.add_argument("--rank", choices=("front", "nccl"), help=argparse.SUPPRESS)
    parser.add_argument(
        "--taken-only",
        action="store_true",
        help="only calls that llcoll has, for ranks with which NCCL itself does not run on one GPU",
    )
    args = parser.parse_args()
    if args.rank:
        run_rank(args.json, args.rank == "front", args.taken_only)
        return 0
    import llcoll.nccl

    results: dict[str, dict] = {}
    sides = [("front", "64M")] if args.taken_only else [("front", "1M"), ("nccl", "0")]
    for idx, (name, max_bytes) in enumerate(sides):
        # The one that takes nothing must not count either: then it only hands on.
        log = ["--log"] if name == "front" else []
        wanted = llcoll.nccl.parse_args(
            ["--max-bytes", max_bytes, *log, "--nccl", str(args.nccl), "--", "python"]
        )
        env = llcoll.nccl.environment_for(wanted, dict(os.environ))
        env |= {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_NVLS_ENABLE": "0", "LLCOLL_TIMEOUT": "20"}
        # Each run has a rendezvous of its own.
        port = int(os.environ["MASTER_PORT"]) % 20000 + 30000 + idx
        env |= {"MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "False"}
        path = args.json.with_suffix(f".{name}")
        command = [sys.executable, __file__, "--nccl", str(args.nccl), "--rank", name]
        command += ["--json", str(path), *(["--taken-only"] if args.taken_only else [])]
        subprocess.run(command, env=env, check=True, timeout=LIMIT_S)
        if os.environ["RANK"] == "0":
            results[name] = json.loads(path.read_text())
    if os.environ["RANK"] == "0":
        args.json.write_text(json.dumps({"version": 1, **results}, indent=1))
        print(f"{results['front']['checked']} results right with the front")
        print("bytes: us in a graph, us of the host: with the front, with NCCL alone")
        for num_bytes, ours in results["front"]["times"].items():
            pairs = [f"{ours['graph_us']:.2f} {ours['host_us']:.2f}"]
            if "nccl" in results:
                theirs = results["nccl"]["times"][num_bytes]
                pairs.append(f"{theirs['graph_us']:.2f} {theirs['host_us']:.2f}")
            print(f"{num_bytes:>8}: {'   '.join(pairs)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
