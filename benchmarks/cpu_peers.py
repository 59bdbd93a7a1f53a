"""Side-by-side CPU all-reduce, one interleaved run: llcoll, its plans, Gloo, Open MPI, MPICH, vLLM.

    python benchmarks/cpu_peers.py --openmpi-python E/bin/python --mpich-python F/bin/python \\
        --vllm-lib V/vllm/_C_AVX512.abi3.so --out results

docs/benchmarks.md says how to make the peers' environments. A peer that is not given, or does not
start, is skipped with its reason. Each figure carries the cache-line latency of its moment, because
a host may move virtual CPUs apart or together during a run and all libraries feel it.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import peer_report
from peer_jobs import JobFailed, JobHandle, PingPong, start_mpi_job, start_torch_job
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

# Short batches: one that another process disturbs is one of many.
NUM_BATCHES = 41
DEFAULT_SIZES = "8,64,128,512,1K,4K,16K,64K,256K,1M,4M,16M"
TORCH_CONTENDERS = ["llcoll", "llcoll_op", "llcoll_plan", "gloo"]
console = Console()


def parse_size(text: str) -> int:
    units = {"K": 1 << 10, "M": 1 << 20}
    return int(text[:-1]) * units[text[-1].upper()] if text[-1].isalpha() else int(text)


def parse_args() -> argparse.Namespace:
    env = os.environ.get
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--cpus", default="0,1", help="rank r runs on the r-th, cyclically")
    parser.add_argument("--sizes", default=DEFAULT_SIZES, help="bytes, with K or M")
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--block-ms", type=float, default=22.0, help="time of one block")
    parser.add_argument("--near-below", type=float, default=100.0, help="ns one way")
    parser.add_argument(
        "--statistic",
        choices=("median", "best"),
        default="median",
        help="of a block's batches; best is for machines that others use at the same time",
    )
    parser.add_argument("--openmpi-python", default=env("LLCOLL_BENCH_OPENMPI_PYTHON"))
    parser.add_argument("--mpich-python", default=env("LLCOLL_BENCH_MPICH_PYTHON"))
    parser.add_argument("--vllm-lib", default=env("LLCOLL_BENCH_VLLM_LIB"))
    parser.add_argument("--only", help="contenders to run, comma-separated")
    parser.add_argument("--out", type=Path, help="writes OUT.json and OUT.md")
    return parser.parse_args()


def start_jobs(
    args: argparse.Namespace, folder: Path
) -> tuple[dict[str, JobHandle], dict[str, str]]:
    """contender -> its job, and what was skipped -> why. Started one after another."""
    only = set(args.only.split(",")) if args.only else None
    skipped: dict[str, str] = {}
    jobs: dict[str, JobHandle] = {}

    def add(name: str, start: Any) -> None:
        job = None
        try:
            job = start()
            job.connect(server, args.ranks)
        except (JobFailed, OSError) as error:
            skipped[name] = str(error)
            if job:
                job.close()
            return
        for contender, reason in job.contenders.items():
            if reason:
                skipped[contender] = reason
            elif only is None or contender in only:
                jobs[contender] = job

    def wanted(*names: str) -> bool:
        return only is None or bool(only & set(names))

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(folder / "socket"))
        server.listen(64)
        for name, names in (("torch", TORCH_CONTENDERS), ("vllm", ["vllm"])):
            if wanted(*names):
                add(name, partial(start_torch_job, name, names, args.ranks, folder, args.vllm_lib))
        for name, python in (("openmpi", args.openmpi_python), ("mpich", args.mpich_python)):
            if not wanted(name, f"{name}_persistent"):
                continue
            if python:
                add(name, partial(start_mpi_job, name, python, args.ranks, folder))
            else:
                skipped[name] = f"no --{name}-python"
    return jobs, skipped


def run_block(
    job: JobHandle, contender: str, dtype: str, num_bytes: int, args: argparse.Namespace
) -> dict[str, Any]:
    """One block. The first of its kind checks the result and finds how many calls fit."""
    key = (contender, dtype, num_bytes)
    block = {"contender": contender, "dtype": dtype, "bytes": num_bytes, "verify": False}
    cpus = [int(cpu) for cpu in args.cpus.split(",")]
    if key not in job.estimates:
        first = job.run({**block, "verify": True, "batches": 3, "per_batch": 3, "warmup": 3}, cpus)
        if first["wrong"]:
            raise JobFailed(
                f"{contender}: {first['wrong']} wrong elements of {dtype} at {num_bytes} B"
            )
        job.estimates[key] = first["median"]
    per_batch = max(1, round(args.block_ms * 1000 / NUM_BATCHES / job.estimates[key]))
    budget = args.block_ms * 1500 / job.estimates[key]
    batches = max(3, min(NUM_BATCHES, round(budget)))
    answer = job.run(
        {**block, "batches": batches, "per_batch": per_batch, "warmup": max(2, per_batch // 4)},
        cpus,
    )
    # The first figure is cold; later ones follow the machine.
    job.estimates[key] = answer["median"]
    return answer


def measure(
    args: argparse.Namespace, jobs: dict[str, JobHandle], ping: PingPong, skipped: dict[str, str]
) -> list[dict[str, Any]]:
    records = []
    sizes = [parse_size(text) for text in args.sizes.split(",")]
    dtypes = args.dtypes.split(",")
    with Progress(console=console) as progress:
        task = progress.add_task("rounds", total=args.rounds * len(sizes) * len(dtypes))
        for round_idx in range(args.rounds):
            for num_bytes in sizes:
                for dtype in dtypes:
                    names = [name for name in jobs if name not in skipped]
                    turn = round_idx % max(1, len(names))
                    for name in names[turn:] + names[:turn]:
                        before = ping.measure()
                        try:
                            answer = run_block(jobs[name], name, dtype, num_bytes, args)
                        except JobFailed as error:
                            skipped[name] = str(error)
                            console.print(f"[red]{name} dropped:[/red] {error}")
                            continue
                        after = ping.measure()
                        is_near = [value < args.near_below for value in (before, after)]
                        state = {2: "near", 1: "mixed", 0: "far"}[sum(is_near)]
                        records.append(
                            {
                                "round": round_idx,
                                "dtype": dtype,
                                "bytes": num_bytes,
                                "contender": name,
                                "us": answer[args.statistic],
                                "median": answer["median"],
                                "best": answer["best"],
                                "state": state,
                                "ping_ns": (before + after) / 2,
                                "waited": answer["waited"],
                                "work_ns": answer["work_ns"],
                            }
                        )
                    progress.advance(task)
    return records


def describe(
    args: argparse.Namespace, records: list[dict[str, Any]], versions: dict[str, str]
) -> dict[str, Any]:
    with open("/proc/cpuinfo", encoding="utf-8") as cpuinfo:
        models = [line.split(":")[1].strip() for line in cpuinfo if line.startswith("model name")]
    commit = subprocess.run(
        ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
        check=False,
        timeout=20,
    ).stdout.strip()
    states = Counter(r["state"] + (" slowed" if r["slowed"] else "") for r in records)
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": models[0] if models else platform.processor(),
        "kernel": platform.release(),
        "ranks": args.ranks,
        "cpus": args.cpus,
        "rounds": args.rounds,
        "statistic": args.statistic,
        "near_below_ns": args.near_below,
        "versions": versions,
        "commit": commit or "unknown",
        "states": ", ".join(f"{state} {count}" for state, count in sorted(states.items())),
        "disturbed": sum(r["waited"] > 0.05 for r in records) / max(1, len(records)),
    }


def show(head: list[str], rows: list[list[str]], title: str) -> None:
    table = Table(title=title)
    for column_idx, column in enumerate(head):
        table.add_column(column, justify="left" if column_idx == 0 else "right")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def main() -> int:
    args = parse_args()
    load = os.getloadavg()[0]
    if load > 0.3:
        console.print(f"[yellow]load average {load:.2f}: other work disturbs the figures[/yellow]")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ping = PingPong(folder, [int(cpu) for cpu in args.cpus.split(",")][:2])
        jobs, skipped = start_jobs(args, folder)
        for contender, why in skipped.items():
            console.print(f"[yellow]skipped {contender}:[/yellow] {why}")
        if not jobs:
            return 1
        versions = {k: v for job in jobs.values() for k, v in job.versions.items()}
        try:
            records = measure(args, jobs, ping, skipped)
            peer_report.mark_slowed(records)
        finally:
            for job in set(jobs.values()):
                job.close()
            ping.close()
    result: dict[str, Any] = {
        "version": 1,
        "about": describe(args, records, versions),
        "records": records,
    }
    result["about"]["skipped"] = skipped
    result["contenders"] = list(jobs)
    result["goals"] = peer_report.goals(records, args.ranks)
    for dtype in args.dtypes.split(","):
        for words, rows in peer_report.time_tables(records, dtype, list(jobs)):
            show(["size", "ping ns", *jobs], rows, f"us per all-reduce, {words}")
    show(peer_report.GOAL_HEAD, peer_report.goal_rows(result["goals"]), "Goals")
    if args.out:
        args.out.with_suffix(".json").write_text(json.dumps(result), encoding="utf-8")
        args.out.with_suffix(".md").write_text(peer_report.markdown(result), encoding="utf-8")
    # What started and then failed or gave a wrong result is a failure; what never started is not.
    return 1 if any(name in skipped for name in jobs) else 0


if __name__ == "__main__":
    sys.exit(main())
