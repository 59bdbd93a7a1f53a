"""llcoll against torch's symmetric-memory all-reduces: one run, CUDA graphs, interleaved, medians.

    python -m llcoll.loopback -n 4 tests/gpu/speed.py [--all-sizes] [--dtypes bfloat16 ...]

Two tables. Ordinary tensors: llcoll out of place, against the torch forms that copy (the result
stays in symmetric memory where that is cheaper for torch). Symmetric tensors: llcoll on tensors of
llcoll.empty, against torch's zero-copy forms. Every round times each candidate once, behind one
synchronising call and a pause that hides the launch; a figure is the slowest rank's.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from common import ALGORITHMS, World, end, ops, parser, start
from torch.distributed import _symmetric_memory as symmetric_memory
from torch_reference import bits

import llcoll

KIB, MIB = 1 << 10, 1 << 20
SIZES = (128, 512, 2 * KIB, 8 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB)
ALL_SIZES = tuple(1 << k for k in range(7, 25))
OPS_PER_GRAPH = 50
HOPELESS = 8.0  # times the best, in a first look: not timed further
ROUNDS = 21
PAUSE_CYCLES = 120_000

Call = Callable[[], object]


def short_size(num_bytes: int) -> str:
    if num_bytes >= MIB:
        return f"{num_bytes // MIB} MiB"
    return f"{num_bytes // KIB} KiB" if num_bytes >= KIB else f"{num_bytes} B"


class Bench:
    def __init__(self, world: World) -> None:
        self.world = world
        name = dist.group.WORLD.group_name
        self.group_name = name
        self.pool = symmetric_memory.empty(16 * MIB, dtype=torch.uint8, device=world.device)
        symmetric_memory.rendezvous(self.pool, name)
        try:
            self.own_pool = llcoll.empty(16 * MIB, dtype=torch.uint8, device=world.device)
            self.own_output = llcoll.empty(16 * MIB, dtype=torch.uint8, device=world.device)
        except RuntimeError as error:
            world.say(f"ordinary memory stands in for llcoll.empty: {error}")
            self.own_pool = torch.empty(16 * MIB, dtype=torch.uint8, device=world.device)
            self.own_output = torch.empty_like(self.own_pool)
        self.stream = torch.cuda.Stream()
        self.gate = torch.ones(16, device=world.device)

    def inputs(self, numel: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Small integers: every order of adding them is exact. This rank's, and the sum."""
        idx = torch.arange(numel, device=self.world.device)
        ranks = [((idx * (rank + 3) + rank) % 17 - 8).to(dtype) for rank in range(self.world.size)]
        return ranks[self.world.rank], sum(r.float() for r in ranks).to(dtype)

    def has_room_for_torch(self, num_bytes: int) -> bool:
        """Where ranks share a GPU: torch's kernels have up to 24 blocks of up to 1024 threads, wait
        without end for their peers' and do not ask whether all of them are resident at once."""
        shared = self.world.size > torch.cuda.device_count()
        return not shared or self.world.size <= 4 or num_bytes <= MIB

    def ordinary(self, x: torch.Tensor) -> dict[str, Call]:
        torch_ops, name = torch.ops.symm_mem, self.group_name
        buffer = self.pool[: x.numel() * x.element_size()].view(x.dtype)

        def copy_two_shot() -> torch.Tensor:
            buffer.copy_(x)
            return torch_ops.two_shot_all_reduce_(buffer, "sum", name)

        def copy_one_shot() -> torch.Tensor:
            buffer.copy_(x)
            return torch_ops.one_shot_all_reduce(buffer, "sum", name)

        def ours(algorithm: str) -> Call:
            return lambda: ops.all_reduce(x, algorithm=algorithm)

        calls: dict[str, Call] = {a: ours(a) for a in ALGORITHMS}
        calls["torch one_shot_copy"] = lambda: torch_ops.one_shot_all_reduce_copy(
            buffer, x, "sum", name
        )
        calls["torch copy+one_shot"] = copy_one_shot
        calls["torch copy+two_shot_"] = copy_two_shot
        return calls

    def symmetric(self, x: torch.Tensor) -> dict[str, Call]:
        torch_ops, name = torch.ops.symm_mem, self.group_name
        num_bytes = x.numel() * x.element_size()
        theirs = self.pool[:num_bytes].view(x.dtype)
        own = self.own_pool[:num_bytes].view(x.dtype)
        theirs.copy_(x)
        own.copy_(x)

        def fresh(algorithm: str) -> Call:
            return lambda: ops.all_reduce(own, algorithm=algorithm)

        def in_place(algorithm: str) -> Call:
            return lambda: ops.all_reduce_(own, algorithm=algorithm)

        calls: dict[str, Call] = {}
        for algorithm in ("auto", "one_shot_flag", "two_shot_flag"):
            calls[algorithm] = fresh(algorithm)
            calls[f"{algorithm} in place"] = in_place(algorithm)
        into = self.own_output[:num_bytes].view(x.dtype)
        calls["two_shot_flag into"] = lambda: ops.all_reduce_out(
            own, algorithm="two_shot_flag", out=into
        )
        calls["torch one_shot"] = lambda: torch_ops.one_shot_all_reduce(theirs, "sum", name)
        calls["torch two_shot_"] = lambda: torch_ops.two_shot_all_reduce_(theirs, "sum", name)
        return calls

    def capture(self, call: Call, num_ops: int) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream):
            for _ in range(num_ops):
                call()
        return graph

    def time_once(self, graph: torch.cuda.CUDAGraph, num_ops: int) -> float:
        begin, finish = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.stream(self.stream):
            ops.all_reduce_(self.gate)
            torch.cuda._sleep(PAUSE_CYCLES)
            begin.record()
            graph.replay()
            finish.record()
        finish.synchronize()
        return begin.elapsed_time(finish) * 1e3 / num_ops

    def slowest(self, values: list[float]) -> list[float]:
        tensor = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return tensor.tolist()

    def measure(self, calls: dict[str, Call], want: torch.Tensor | None) -> dict[str, list[float]]:
        """Candidate -> us per call, a figure a round."""
        with torch.cuda.stream(self.stream):
            for name, call in list(calls.items()):
                try:
                    result = call()
                except RuntimeError as error:
                    if not name.startswith("torch"):
                        raise
                    # A size that torch's form does not take; alike on every rank.
                    self.world.say(f"{name} is left out: {str(error).splitlines()[0][:150]}")
                    del calls[name]
                    continue
                if want is not None and not torch.equal(bits(result), bits(want)):
                    raise AssertionError(f"{name}: wrong result of {want.numel()} {want.dtype}")
        torch.cuda.synchronize()
        llcoll.check()
        graphs = {name: self.capture(call, OPS_PER_GRAPH) for name, call in calls.items()}
        first = self.slowest([self.time_once(graph, OPS_PER_GRAPH) for graph in graphs.values()])
        kept = {
            name: graph
            for (name, graph), us in zip(graphs.items(), first, strict=True)
            if us <= HOPELESS * min(first)
        }
        rows = [
            [self.time_once(graph, OPS_PER_GRAPH) for graph in kept.values()]
            for _ in range(self.world.args.rounds)
        ]
        flat = self.slowest([us for row in rows for us in row])
        width = len(kept)
        return {name: flat[idx::width] for idx, name in enumerate(kept)}


def lower_bound(ratios: list[float]) -> float:
    """Of the median, at 95%, by order statistics."""
    ordered = sorted(ratios)
    rank = int(len(ordered) / 2 - 1.645 * math.sqrt(len(ordered)) / 2)
    return ordered[max(rank - 1, 0)]


def summarise(times: dict[str, list[float]], num_bytes: int) -> dict[str, Any]:
    medians = {name: statistics.median(values) for name, values in times.items()}
    peers = {name: us for name, us in medians.items() if name.startswith("torch")}
    peer = min(peers, key=peers.__getitem__)
    ours = {name: us for name, us in medians.items() if name not in peers}
    best = min(ours, key=ours.__getitem__)
    # `auto` is what a user gets; in place where that is torch's form too.
    auto = min((n for n in ours if n.startswith("auto")), key=ours.__getitem__, default=best)
    paired = [a / b for a, b in zip(times[peer], times[auto], strict=True)]
    return {
        "bytes": num_bytes,
        "us": {name: round(us, 3) for name, us in medians.items()},
        "peer": peer,
        "best": best,
        "auto": auto,
        "ratio": medians[peer] / medians[auto],
        "ratio_low": lower_bound(paired),
        "best_ratio": medians[peer] / medians[best],
    }


def geometric_mean(values: list[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values))) if values else math.nan


def table(title: str, rows: list[dict[str, Any]]) -> str:
    lines = [
        f"### {title}",
        "| size | auto us | our best us | torch best us | speed-up, auto (low) | best |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        us = row["us"]
        lines.append(
            f"| {short_size(row['bytes'])} | {us[row['auto']]:.2f} "
            f"| {us[row['best']]:.2f} {row['best']} "
            f"| {us[row['peer']]:.2f} {row['peer'].removeprefix('torch ')} "
            f"| {row['ratio']:.2f} ({row['ratio_low']:.2f}) | {row['best_ratio']:.2f} |"
        )
    means = []
    for low, high in ((0, 64 * KIB), (64 * KIB + 1, MIB), (256 * KIB, 4 * MIB), (0, 1 << 40)):
        within = [row for row in rows if low <= row["bytes"] <= high]
        if within:
            words = f"{short_size(within[0]['bytes'])}..{short_size(within[-1]['bytes'])}"
            auto = geometric_mean([row["ratio"] for row in within])
            best = geometric_mean([row["best_ratio"] for row in within])
            means.append(f"{words} {auto:.2f} ({best:.2f})")
    worst = min(rows, key=lambda row: row["ratio_low"])
    lines.append(f"geometric means, auto (best): {'; '.join(means)}")
    lines.append(f"least lower bound: {worst['ratio_low']:.2f} at {short_size(worst['bytes'])}")
    return "\n".join(lines)


def full_table(rows: list[dict[str, Any]]) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row["us"]))
    lines = [f"| size | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for row in rows:
        cells = [f"{row['us'][n]:.2f}" if n in row["us"] else "-" for n in names]
        lines.append(f"| {short_size(row['bytes'])} | {' | '.join(cells)} |")
    return "\n".join(lines)


def write(world: World, sections: dict[str, list[dict[str, Any]]]) -> None:
    if world.rank != 0:
        return
    device = torch.cuda.get_device_name(world.device)
    name = f"speed_{world.size}"
    data = {
        "version": 1,
        "ranks": world.size,
        "device": device,
        "torch": torch.__version__,
        "llcoll": llcoll.__version__,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "ops_per_graph": OPS_PER_GRAPH,
        "rounds": world.args.rounds,
        "sections": sections,
    }
    compact = "\n".join(table(f"{world.size} ranks, {title}", r) for title, r in sections.items())
    details = "\n\n".join(f"### {title}\n{full_table(rows)}" for title, rows in sections.items())
    print(compact, flush=True)
    out = os.environ.get("OUT")
    if out:
        Path(out, f"{name}.json").write_text(json.dumps(data, indent=1))
        head = f"## {world.size} ranks on {device}, torch {torch.__version__}, us per call\n\n"
        Path(out, f"{name}.md").write_text(f"{head}{compact}\n\n{details}\n")


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--all-sizes", action="store_true", help="every power of two")
    arguments.add_argument("--sizes", type=int, nargs="+", help="these alone, in bytes")
    arguments.add_argument("--dtypes", nargs="+", default=["bfloat16", "float32"])
    arguments.add_argument("--rounds", type=int, default=ROUNDS)
    arguments.add_argument(
        "--auto-only", nargs="*", default=[], help="dtypes of which llcoll's auto alone is timed"
    )
    arguments.add_argument("--seconds", type=float, default=60, help="no new size after these")
    args = arguments.parse_args()
    world = start(args)
    bench = Bench(world)
    deadline = time.monotonic() + args.seconds
    sections: dict[str, list[dict[str, Any]]] = {}
    status = 0
    for kind in ("ordinary", "symmetric"):
        for dtype in args.dtypes:
            rows = sections.setdefault(f"{kind} {dtype}", [])
            for num_bytes in args.sizes or (ALL_SIZES if args.all_sizes else SIZES):
                if not bench.has_room_for_torch(num_bytes):
                    world.say(f"{short_size(num_bytes)}: torch's ranks have no room on one GPU")
                    continue
                # One rank's clock decides for all.
                if bench.slowest([float(time.monotonic() > deadline)])[0]:
                    world.say(f"out of time: {kind} {dtype} ends before {short_size(num_bytes)}")
                    break
                x, want = bench.inputs(
                    num_bytes // getattr(torch, dtype).itemsize, getattr(torch, dtype)
                )
                calls = bench.ordinary(x) if kind == "ordinary" else bench.symmetric(x)
                if dtype in args.auto_only:
                    calls = {n: c for n, c in calls.items() if n.startswith(("auto", "torch"))}
                torch.cuda.synchronize()  # the calls run on another stream than their input
                try:
                    times = bench.measure(calls, want if kind == "ordinary" else None)
                except Exception as error:
                    # Ranks may differ in how far they came: nothing later can be trusted.
                    words = f"{kind} {dtype} {short_size(num_bytes)}: {error}"
                    print(f"[rank {world.rank}] {words}", flush=True)
                    status = 1
                    break
                rows.append(summarise(times, num_bytes))
                row, left = rows[-1], deadline - time.monotonic()
                words = f"auto {row['us'][row['auto']]:.2f} us, {row['ratio']:.2f} times torch"
                world.say(f"{kind} {dtype} {short_size(num_bytes)}: {words} ({left:.0f} s left)")
            if status:
                break
        if status:
            break
    write(world, {title: rows for title, rows in sections.items() if rows})
    if status:
        os._exit(status)  # peers may be anywhere; the launcher ends them
    return end(world)


if __name__ == "__main__":
    sys.exit(main())
