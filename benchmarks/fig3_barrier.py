"""Figure 3: what a barrier costs, against the number of ranks, and a whole LL all-reduce beside it.

    python benchmarks/fig3_barrier.py --out results --ranks 2,4,8

Each all-reduce with barriers pays at least one of these (the paper: two) on top of its data. Peers:
Gloo's barrier on the CPU; torch symmetric memory's on CUDA, in graphs as llcoll's.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import Any

import reproduce
import torch
import torch.distributed as dist

from llcoll.bench import plot, report
from llcoll.bench.cases import Case
from llcoll.bench.contenders import Contender, Llcoll
from llcoll.bench.forms import Call, Cell, Form
from llcoll.bench.session import Session
from llcoll.bench.timing import Effort, measure_cell

NAME = "fig3_barrier"
TRIALS = 10


class Barrier(Contender):
    def __init__(self, name: str, call: Call) -> None:
        self.name, self._call = name, call

    def forms(self, cell: Cell) -> list[Form]:
        return [Form(cell, [self._call], in_place=True)]


class SmallReduce(Llcoll):
    """One form is enough."""

    def forms(self, cell: Cell) -> list[Form]:
        return super().forms(cell)[1:]


def contenders(session: Session) -> list[Contender]:
    barrier = torch.ops.llcoll.barrier.default
    made: list[Contender] = [Barrier("llcoll.barrier", barrier), SmallReduce("one_shot_ll")]
    if session.is_cuda:
        from torch.distributed import _symmetric_memory as symmetric

        buffer = symmetric.empty(4096, dtype=torch.uint8, device=session.device)
        handle = symmetric.rendezvous(buffer, session.communicator.group_name)
        made.append(Barrier("torch symmetric memory", handle.barrier))
    else:
        made.append(Barrier("gloo", partial(dist.barrier, session.control)))
    return made


def worker(session: Session, args: argparse.Namespace) -> dict[str, Any]:
    dtype = torch.bfloat16 if session.is_cuda else torch.float32
    mode = "graph" if session.is_cuda else "eager"
    cell = Cell(session, Case(dtype, "sum", session.world_size), 8 // dtype.itemsize, mode)
    # A barrier has no result to check; what orders it is tested elsewhere.
    rows = measure_cell(cell, contenders(session), Effort(args.iters, TRIALS, 50, check=False))
    return {"us": {row.contender: row.figures[0].rounds for row in rows}}


def make_report(args: argparse.Namespace, results: reproduce.Results, out: Path) -> None:
    names = list(next(iter(results.values()))["us"])
    rows = []
    for num_ranks, data in results.items():
        cells = [reproduce.shown(*reproduce.mean_deviation(data["us"][name])) for name in names]
        rows.append([str(num_ranks), *cells])
    head = ["ranks", *[f"{name} (us)" for name in names]]
    body = report.markdown_table(head, rows)
    body += f"\nMean and deviation of {TRIALS} trials; `one_shot_ll` is an all-reduce of 8 bytes.\n"
    reproduce.write_markdown(out, "Barrier latency against ranks (figure 3)", results, body)
    plt = plot.pyplot()
    figure, axes = plt.subplots(figsize=(5, 3.5))
    for name in names:
        pairs = [reproduce.mean_deviation(data["us"][name]) for data in results.values()]
        means, deviations = zip(*pairs, strict=True)
        axes.errorbar(list(results), means, deviations, fmt="-o", capsize=3, label=name)
    axes.set_xticks(list(results))
    axes.set_xlabel("ranks")
    axes.set_ylabel("us")
    axes.set_yscale("log")
    axes.grid(True, alpha=0.3)
    axes.legend(fontsize=7)
    plot.save(figure, out.with_suffix(".png"))


if __name__ == "__main__":
    parser = reproduce.make_parser(NAME, __doc__, "2,4")
    parser.add_argument("-n", "--iters", type=int, default=2000)
    sys.exit(reproduce.main(NAME, parser, worker, make_report, __file__))
