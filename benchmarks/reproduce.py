"""What the reproductions of the paper's figures share: jobs, tables, pictures.

A script offers `worker(session, args) -> data` (ranks run it, rank 0's answer counts) and
`report(args, results, out)`, which gets the answers by number of ranks. One command does it all:

    python benchmarks/fig3_barrier.py --out results [--ranks 2,4] [--device cpu]

On a machine with GPUs the ranks use them, several on one where there are too few (llcoll.loopback);
else the CPU. OUT/NAME.json holds everything with machine and date, OUT/NAME.md the table,
OUT/NAME.png the picture.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")

import torch

from llcoll import _ops
from llcoll.bench import device as places
from llcoll.bench import options, report
from llcoll.bench.session import Session, open_session

Results = dict[int, dict[str, Any]]
Worker = Callable[[Session, argparse.Namespace], dict[str, Any]]
Report = Callable[[argparse.Namespace, Results, Path], None]


def numbers(text: str) -> list[int]:
    return [options.parse_size(word) for word in text.split(",")]


def make_parser(name: str, doc: str | None, ranks: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        name, description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder of the results")
    parser.add_argument("--ranks", type=numbers, default=numbers(ranks), help="comma-separated")
    parser.add_argument("--limit", type=float, default=600, help="seconds that one job may take")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options.add_place(parser)
    return parser


def uses_gpus(args: argparse.Namespace) -> bool:
    if args.device == "cpu":
        return False
    return torch.cuda.is_available() and _ops.CUDA_PROBLEM is None


def launch(script: str, argv: list[str], num_ranks: int, on_gpus: bool, limit: float) -> Any:
    """Runs the script's worker on `num_ranks` ranks; what rank 0 wrote."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder, "answer.json")
        if on_gpus:
            command = [sys.executable, "-m", "llcoll.loopback", "-n", str(num_ranks)]
            command += ["--timeout", str(limit)]
        else:
            command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
            command += ["--local-addr", "127.0.0.1", "--nproc-per-node", str(num_ranks)]
        command += [script, *argv, "--worker", str(answer)]
        env = {"OMP_NUM_THREADS": "1", **os.environ}
        subprocess.run(command, env=env, check=True, timeout=limit + 60)
        return json.loads(answer.read_text(encoding="utf-8"))


def main(
    name: str, parser: argparse.ArgumentParser, worker: Worker, make_report: Report, script: str
) -> int:
    args = parser.parse_args()
    if args.worker is not None:
        choice = places.choose(args, sys.argv[1:])
        if isinstance(choice, int):
            return choice
        with open_session(choice) as session:
            data = worker(session, args)
            if session.rank == 0:
                whole = {"about": report.about(session), **data}
                args.worker.write_text(json.dumps(whole), encoding="utf-8")
        return 0
    results: Results = {}
    for num_ranks in args.ranks:
        print(f"{name}: {num_ranks} ranks", flush=True)
        results[num_ranks] = launch(script, sys.argv[1:], num_ranks, uses_gpus(args), args.limit)
    args.out.mkdir(parents=True, exist_ok=True)
    report.write_json(args.out / f"{name}.json", {"results": results})
    make_report(args, results, args.out / name)
    print(f"{name}: {args.out}/{name}.md, .png, .json")
    return 0


def about_line(results: Results) -> str:
    about = next(iter(results.values()))["about"]
    machine = about["machine"]
    driver = "" if machine["driver"] == "-" else f", driver {machine['driver']}"
    return (
        f"{machine['device']}{driver}, Linux {about['kernel']}, torch {about['torch']}, llcoll "
        f"{about['llcoll']}; {about['where']}; {about['date']}."
    )


def write_markdown(path: Path, title: str, results: Results, body: str) -> None:
    text = f"## {title}\n{about_line(results)}\n\n{body}"
    path.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text)


def mean_deviation(values: list[float]) -> tuple[float, float]:
    return statistics.fmean(values), statistics.pstdev(values)


def shown(mean: float, deviation: float) -> str:
    digits = 2 if mean < 100 else 0
    return f"{mean:.{digits}f} ± {deviation:.{digits}f}"
