"""Figure 12: how the size of the scratch changes the latency of one large message.

    python benchmarks/fig12_scratch.py --out results --ranks 2

A message that does not fit goes in chunks. The scratch is llcoll.init's scratch_bytes: one budget
for all protocols, of which each has a share.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import reproduce

import llcoll
from llcoll.bench import options, plot, report
from llcoll.bench.cases import Case
from llcoll.bench.contenders import Llcoll, usable_algorithms
from llcoll.bench.forms import Cell
from llcoll.bench.session import Session
from llcoll.bench.timing import Effort, measure_cell

NAME = "fig12_scratch"
TRIALS = 5


def worker(session: Session, args: argparse.Namespace) -> dict[str, Any]:
    dtype = options.TYPES[args.dtype]
    names = [name for name in usable_algorithms(session, dtype, "sum") if name != "torch"]
    mode = "graph" if session.is_cuda else "in-kernel"
    us: dict[str, dict[str, list[float]]] = {}
    for scratch_bytes in args.scratch:
        session.synchronize()
        session.barrier()
        llcoll.shutdown()
        session.communicator = llcoll.init(device=session.device, scratch_bytes=scratch_bytes)
        cell = Cell(
            session, Case(dtype, "sum", session.world_size), args.message // dtype.itemsize, mode
        )
        rows = measure_cell(cell, [Llcoll(name) for name in names], Effort(2 * TRIALS, TRIALS, 2))
        if any(figure.wrong for row in rows for figure in row.figures):
            raise RuntimeError("a wrong result: see llcoll.bench")
        us[str(scratch_bytes)] = {
            row.contender: row.best.rounds for row in rows if row.best is not None
        }
        session.say(f"  scratch {report.short_size(scratch_bytes)} done")
    return {"us": us}


def make_report(args: argparse.Namespace, results: reproduce.Results, out: Path) -> None:
    plt = plot.pyplot()
    figure, every = plt.subplots(1, len(results), figsize=(5 * len(results), 3.8), squeeze=False)
    body = ""
    for axes, (num_ranks, data) in zip(every[0], results.items(), strict=True):
        names = list(next(iter(data["us"].values())))
        rows = []
        for scratch_bytes, us in data["us"].items():
            cells = [reproduce.shown(*reproduce.mean_deviation(us[name])) for name in names]
            rows.append([report.short_size(int(scratch_bytes)), *cells])
        body += f"### {num_ranks} ranks, {report.short_size(args.message)} (us)\n\n"
        body += report.markdown_table(["scratch", *names], rows) + "\n"
        for name in names:
            sizes = [int(size) / (1 << 20) for size in data["us"]]
            pairs = [reproduce.mean_deviation(us[name]) for us in data["us"].values()]
            means, deviations = zip(*pairs, strict=True)
            axes.errorbar(sizes, means, deviations, fmt="-o", markersize=3, label=name)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xlabel("scratch (MiB)")
        axes.set_ylabel("us")
        axes.set_title(f"{num_ranks} ranks, {report.short_size(args.message)}", fontsize=9)
        axes.grid(True, alpha=0.3)
        axes.legend(fontsize=6)
    body += f"Mean and deviation of {TRIALS} trials.\n"
    reproduce.write_markdown(out, "Scratch size against latency (figure 12)", results, body)
    figure.tight_layout()
    plot.save(figure, out.with_suffix(".png"))


if __name__ == "__main__":
    parser = reproduce.make_parser(NAME, __doc__, "2")
    parser.add_argument("-d", "--dtype", choices=sorted(options.TYPES), default="float")
    parser.add_argument("--message", type=options.parse_size, default=8 << 20)
    parser.add_argument("--scratch", type=reproduce.numbers, default="1M,2M,4M,8M,16M,32M,64M,128M")
    sys.exit(reproduce.main(NAME, parser, worker, make_report, __file__))
