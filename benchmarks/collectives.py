"""Side-by-side CPU benchmark of the other collectives, one interleaved run: llcoll, Gloo, MPI.

    python benchmarks/collectives.py --openmpi-python E/bin/python --out build/collectives

reduce_scatter, all_gather, all_to_all, broadcast, reduce. Like cpu_peers.py, whose jobs, blocks and
options these are (docs/benchmarks.md): a peer that is not given is skipped with its reason, each
figure carries the cache-line latency of its moment. A size is that of the larger tensor of a rank.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import socket
import statistics
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from collectives_worker import KINDS
from cpu_peers import parse_size, run_block
from peer_jobs import JobFailed, JobHandle, PingPong, start_mpi_job, start_torch_job
from rich.console import Console
from rich.table import Table

OURS = ("llcoll", "llcoll_plan")
WORKER = "collectives_worker.py"
GOAL_BYTES = 256 << 10
console = Console()


def parse_args() -> argparse.Namespace:
    env = os.environ.get
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--cpus", default="0,1", help="rank r runs on the r-th, cyclically")
    parser.add_argument("--sizes", default="8,64,1K,8K,64K,256K,1M", help="bytes, with K or M")
    parser.add_argument("--dtypes", default="float32")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--block-ms", type=float, default=15.0, help="time of one block")
    parser.add_argument("--openmpi-python", default=env("LLCOLL_BENCH_OPENMPI_PYTHON"))
    parser.add_argument("--mpich-python", default=env("LLCOLL_BENCH_MPICH_PYTHON"))
    parser.add_argument("--out", type=Path, help="writes OUT.json and OUT.md")
    return parser.parse_args()


def start_jobs(args: argparse.Namespace, folder: Path) -> dict[str, JobHandle]:
    """library -> its job."""
    jobs: dict[str, JobHandle] = {}
    ours = [f"{library} {kind}" for library in ("llcoll", "llcoll_plan", "gloo") for kind in KINDS]
    starts: dict[str, Any] = {
        "torch": partial(start_torch_job, "torch", ours, args.ranks, folder, None, WORKER)
    }
    for name, python in (("openmpi", args.openmpi_python), ("mpich", args.mpich_python)):
        if python:
            starts[name] = partial(start_mpi_job, name, python, args.ranks, folder, WORKER)
        else:
            console.print(f"[yellow]skipped {name}:[/yellow] no --{name}-python")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(folder / "socket"))
        server.listen(64)
        for name, start in starts.items():
            job = start()
            try:
                job.connect(server, args.ranks)
            except JobFailed as error:
                console.print(f"[yellow]skipped {name}:[/yellow] {error}")
                job.close()
                continue
            for contender, reason in job.contenders.items():
                if reason:
                    console.print(f"[yellow]skipped {contender}:[/yellow] {reason}")
                else:
                    jobs[contender.split()[0]] = job
    return jobs


def measure(
    args: argparse.Namespace, jobs: dict[str, JobHandle], ping: PingPong
) -> list[dict[str, Any]]:
    records = []
    dropped: set[str] = set()
    cases = [
        (kind, parse_size(size), dtype)
        for kind in args.kinds.split(",")
        for size in args.sizes.split(",")
        for dtype in args.dtypes.split(",")
    ]
    for round_idx in range(args.rounds):
        for kind, num_bytes, dtype in cases:
            names = list(jobs)
            turn = round_idx % len(names)
            for library in names[turn:] + names[:turn]:
                contender = f"{library} {kind}"
                if contender in dropped:
                    continue
                before = ping.measure()
                try:
                    answer = run_block(jobs[library], contender, dtype, num_bytes, args)
                except JobFailed as error:
                    dropped.add(contender)
                    console.print(f"[red]{contender} dropped:[/red] {error}")
                    continue
                records.append(
                    {
                        "round": round_idx,
                        "kind": kind,
                        "library": library,
                        "dtype": dtype,
                        "bytes": num_bytes,
                        "us": answer["median"],
                        "ping_ns": (before + ping.measure()) / 2,
                    }
                )
    return records


def medians(records: list[dict[str, Any]]) -> dict[tuple[str, int, str], float]:
    groups: dict[tuple[str, int, str], list[float]] = {}
    for r in records:
        groups.setdefault((r["kind"], r["bytes"], r["library"]), []).append(r["us"])
    return {key: statistics.median(values) for key, values in groups.items()}


def report(records: list[dict[str, Any]], libraries: list[str], dtype: str) -> list[list[str]]:
    """Rows: collective, size, us of each library, ratio to the best peer."""
    chosen = medians([r for r in records if r["dtype"] == dtype])
    rows = []
    for kind, num_bytes in dict.fromkeys(key[:2] for key in chosen):
        cells = {name: chosen.get((kind, num_bytes, name)) for name in libraries}
        us = min((cells[name] for name in OURS if cells.get(name)), default=None)
        peers = [value for name, value in cells.items() if name not in OURS and value]
        ratio = f"{min(peers) / us:.2f}" if us and peers else "-"
        shown = [f"{value:.2f}" if value else "-" for value in cells.values()]
        rows.append([kind, str(num_bytes), *shown, ratio])
    return rows


def summary(records: list[dict[str, Any]], libraries: list[str]) -> list[str]:
    """Geometric means of peer / llcoll up to 256 KiB, and the least ratio."""
    lines = []
    chosen = medians(records)
    pairs = [(ours, peer) for peer in libraries for ours in OURS if peer not in OURS]
    for kind in dict.fromkeys(r["kind"] for r in records):
        for ours, peer in pairs:
            ratios = {
                num_bytes: chosen[kind, num_bytes, peer] / us
                for (k, num_bytes, library), us in chosen.items()
                if (k, library) == (kind, ours)
                and num_bytes <= GOAL_BYTES
                and (kind, num_bytes, peer) in chosen
            }
            if ratios:
                mean = math.exp(statistics.fmean(map(math.log, ratios.values())))
                worst = min(ratios, key=ratios.__getitem__)
                lines.append(
                    f"{kind}: {ours} {mean:.1f}x as fast as {peer} up to 256 KiB (geometric mean), "
                    f"least {ratios[worst]:.2f}x at {worst} B"
                )
    return lines


def main() -> int:
    args = parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ping = PingPong(folder, [int(cpu) for cpu in args.cpus.split(",")][:2])
        jobs = start_jobs(args, folder)
        try:
            records = measure(args, jobs, ping) if jobs else []
        finally:
            for job in set(jobs.values()):
                job.close()
            ping.close()
    if not records:
        return 1
    libraries = list(jobs)
    head = ["collective", "bytes", *libraries, "best peer / llcoll"]
    pings = sorted(r["ping_ns"] for r in records)
    about = (
        f"{args.ranks} ranks, us per call (median of {args.rounds} rounds), cache line one way "
        f"{pings[0]:.0f}-{pings[-1]:.0f} ns, median {statistics.median(pings):.0f}, "
        f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M} UTC"
    )
    text = [about, ""]
    for dtype in args.dtypes.split(","):
        rows = report(records, libraries, dtype)
        table = Table(title=f"{dtype}: {about}")
        for column in head:
            table.add_column(column)
        for row in rows:
            table.add_row(*row)
        console.print(table)
        text += [f"### {dtype}", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
        text += [f"| {' | '.join(row)} |" for row in rows]
    lines = summary(records, libraries)
    console.print("\n".join(lines))
    if args.out:
        result = {"version": 1, "about": about, "records": records}
        args.out.with_suffix(".json").write_text(json.dumps(result), encoding="utf-8")
        args.out.with_suffix(".md").write_text("\n".join([*text, "", *lines, ""]), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
