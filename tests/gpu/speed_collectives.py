"""The collectives of one exchange against torch's symmetric-memory forms, in speed.py's way.

    python -m llcoll.loopback -n 4 tests/gpu/speed_collectives.py [--dtypes bfloat16 ...]

A size is that of the larger tensor of a rank. torch has a reduce-scatter (its input symmetric) and
all-gathers and reduce-scatters by copy engines; broadcast, reduce and all-to-all only over NVSHMEM,
so those have no peer here: the cheapest torch all-reduce of that size stands beside them.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from common import end, ops, parser, start
from speed import KIB, MIB, OPS_PER_GRAPH, ROUNDS, Bench, Call, geometric_mean, short_size
from torch_reference import bits

import llcoll

SIZES = (1 * KIB, 8 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB)
KINDS = ("all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce")
GOAL_BYTES = 256 * KIB


class CollectivesBench(Bench):
    def ours(self, kind: str, x: torch.Tensor, part: torch.Tensor) -> dict[str, Call]:
        calls: dict[str, Call] = {}
        algorithms = ["auto", "one_shot_ll", "one_shot_flag"]
        if kind in ("reduce_scatter", "reduce") and x.dtype.is_floating_point:
            algorithms.append("one_shot_sentinel")

        def call(algorithm: str) -> Call:
            op = getattr(ops, kind)
            given = part if kind == "all_gather" else x
            return lambda: op(given, algorithm=algorithm)

        for algorithm in algorithms:
            calls[algorithm] = call(algorithm)
        return calls

    def theirs(self, kind: str, x: torch.Tensor, part: torch.Tensor) -> dict[str, Call]:
        torch_ops, name = torch.ops.symm_mem, self.group_name
        num_bytes = x.numel() * x.element_size()
        whole = self.pool[:num_bytes].view(x.dtype)
        out = torch.empty_like(part)

        def reduce_scatter() -> torch.Tensor:
            whole.copy_(x)
            return torch_ops.reduce_scatter_out(whole, name, False, out)

        # Not torch's low-contention forms: a capture refuses their streams, and what is left then
        # ends the program.
        if kind == "all_gather":
            return {}
        if kind == "reduce_scatter":
            return {"torch copy+rs_out": reduce_scatter}
        return {
            "torch all_reduce": lambda: torch_ops.one_shot_all_reduce_copy(whole, x, "sum", name)
        }

    def capturable(self, calls: dict[str, Call]) -> dict[str, Call]:
        """Without what torch cannot run, or capture, here: alike on every rank."""
        kept = {}
        for label, call in calls.items():
            failed = ""
            try:
                with torch.cuda.stream(self.stream):
                    call()
                torch.cuda.synchronize()
                self.capture(call, 1)
            except Exception as error:  # any reason leaves it out, and is shown
                failed = str(error).splitlines()[0][:150]
                torch.cuda.synchronize()
            if self.slowest([float(bool(failed))])[0]:
                self.world.say(f"{label} is left out: {failed}")
            else:
                kept[label] = call
        return kept

    def wanted(self, kind: str, x: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
        """Small integers: sums are exact in every order."""
        rank, size = self.world.rank, self.world.size
        inputs = [self.values(x.numel(), x.dtype, r) for r in range(size)]
        numel = part.numel()
        mine = slice(rank * numel, (rank + 1) * numel)
        if kind == "all_gather":
            return torch.cat([values[:numel] for values in inputs])
        if kind == "all_to_all":
            return torch.cat([values[mine] for values in inputs])
        if kind == "broadcast":
            return inputs[0]
        total = sum(values.float() for values in inputs).to(x.dtype)
        if kind == "reduce":
            return total if rank == 0 else inputs[rank]
        return total[mine]

    def values(self, numel: int, dtype: torch.dtype, rank: int) -> torch.Tensor:
        idx = torch.arange(numel, device=self.world.device)
        return ((idx * (rank + 3) + rank) % 17 - 8).to(dtype)


def summarise(kind: str, num_bytes: int, times: dict[str, list[float]]) -> dict[str, Any]:
    us = {name: round(statistics.median(values), 3) for name, values in times.items()}
    peers = {name: value for name, value in us.items() if name.startswith("torch")}
    peer = min(peers, key=peers.__getitem__, default="")
    if "auto" not in us:  # hopelessly slow, so not timed: the table must not hide it
        us["auto"] = math.inf
    return {
        "kind": kind,
        "bytes": num_bytes,
        "us": us,
        "peer": peer,
        "ratio": us[peer] / us["auto"] if peer else None,
    }


def table(title: str, rows: list[dict[str, Any]]) -> str:
    lines = [f"### {title}", "| collective | size | auto us | others us | torch us | ratio |"]
    lines.append("|---" * 6 + "|")
    for row in rows:
        others = {n: v for n, v in row["us"].items() if n != "auto" and not n.startswith("torch")}
        words = ", ".join(f"{name.removeprefix('one_shot_')} {v:.2f}" for name, v in others.items())
        name = row["peer"]
        peer = f"{row['us'][name]:.2f} {name.removeprefix('torch ')}" if name else "-"
        ratio = f"{row['ratio']:.2f}" if name else "-"
        lines.append(
            f"| {row['kind']} | {short_size(row['bytes'])} | {row['us']['auto']:.2f} | {words} "
            f"| {peer} | {ratio} |"
        )
    for kind in KINDS:
        ratios = [r["ratio"] for r in rows if r["kind"] == kind and r["bytes"] <= GOAL_BYTES]
        ratios = [ratio for ratio in ratios if ratio]
        if ratios:
            lines.append(
                f"{kind}: {geometric_mean(ratios):.2f}x up to 256 KiB (geometric mean), "
                f"least {min(ratios):.2f}x"
            )
    return "\n".join(lines)


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--dtypes", nargs="+", default=["bfloat16"])
    arguments.add_argument("--rounds", type=int, default=ROUNDS)
    arguments.add_argument("--seconds", type=float, default=40, help="no new size after these")
    args = arguments.parse_args()
    world = start(args)
    if not world.on_gpu:
        sys.exit("speed_collectives.py: needs a GPU")
    bench = CollectivesBench(world)
    deadline = time.monotonic() + args.seconds
    sections: dict[str, list[dict[str, Any]]] = {}
    for dtype in args.dtypes:
        rows = sections.setdefault(dtype, [])
        for num_bytes in SIZES:
            for kind in KINDS:
                if bench.slowest([float(time.monotonic() > deadline)])[0]:
                    world.say(f"out of time before {kind} {short_size(num_bytes)}")
                    break
                numel = num_bytes // getattr(torch, dtype).itemsize // world.size * world.size
                x = bench.values(numel, getattr(torch, dtype), world.rank)
                part = x[: numel // world.size].clone()
                want = bench.wanted(kind, x, part)
                ours = bench.ours(kind, x, part)
                for label, call in ours.items():
                    if not torch.equal(bits(call()), bits(want)):
                        raise AssertionError(f"{kind} {label} {num_bytes}: wrong result")
                theirs = bench.capturable(bench.theirs(kind, x, part))
                times = bench.measure({**ours, **theirs}, None)
                rows.append(summarise(kind, num_bytes, times))
    text = "\n\n".join(table(f"{world.size} ranks, {d}", rows) for d, rows in sections.items())
    world.say(text)
    out = os.environ.get("OUT")
    if out and world.rank == 0:
        data = {
            "version": 1,
            "ranks": world.size,
            "device": torch.cuda.get_device_name(world.device),
            "torch": torch.__version__,
            "llcoll": llcoll.__version__,
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "ops_per_graph": OPS_PER_GRAPH,
            "rounds": args.rounds,
            "sections": sections,
        }
        Path(out, f"collectives_{world.size}.json").write_text(json.dumps(data, indent=1))
        Path(out, f"collectives_{world.size}.md").write_text(text + "\n")
    return end(world)


if __name__ == "__main__":
    sys.exit(main())
