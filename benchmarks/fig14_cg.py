"""Figure 14's kind of work: a solver that lives on small reductions, here conjugate gradients.

    python benchmarks/fig14_cg.py --out results --ranks 2

A Poisson problem on an n x n grid, its rows split over the ranks. An iteration makes three sums:
the rows at the ranks' borders (a few KiB), and two dot products (a number each, padded to 16
bytes). Nothing else is sent. Before timing, every variant solves the problem and its residual is
checked. On CUDA ten iterations are one graph.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import reproduce
import torch
from reducers import Reducer, make_reducers

from llcoll.bench import plot, report
from llcoll.bench.session import Session

NAME = "fig14_cg"
TRIALS = 5
PER_GRAPH = 10
FLOPS_PER_POINT = 5 + 2 + 2 + 6  # stencil, two dot products, three vector updates
PAD = {torch.float32: 4, torch.float64: 2}  # elements in 16 bytes


class Solver:
    def __init__(self, reducer: Reducer, session: Session, n: int, dtype: torch.dtype) -> None:
        self.reducer, self.session, self.dtype = reducer, session, dtype
        self.rank, self.num_ranks = session.rank, session.world_size
        if n % self.num_ranks:
            raise SystemExit(f"--grid {n} does not divide by {self.num_ranks} ranks")
        rows = n // self.num_ranks
        place: dict[str, Any] = {"dtype": self.dtype, "device": session.device}
        self.padded = torch.zeros(rows + 2, n, **place)  # the direction, with its neighbours' rows
        self.direction = self.padded[1:-1]
        self.product = torch.zeros(rows, n, **place)
        self.solution = torch.zeros(rows, n, **place)
        self.residual = torch.zeros(rows, n, **place)
        at = torch.arange(n, **place)
        mine = at[self.rank * rows : (self.rank + 1) * rows, None]
        self.right = torch.sin(mine * 0.37) * torch.cos(at * 0.21) + 0.1
        self.norm = torch.zeros((), **place)
        # What is reduced: one buffer a purpose, for the life of the solver.
        self.border = reducer.empty(2 * self.num_ranks, n, **place)
        self.dots = [reducer.empty(PAD[self.dtype], **place) for _ in range(2)]
        self.sum_border = reducer.bind(self.border)
        self.sum_dots = [reducer.bind(dot) for dot in self.dots]
        self.run: Callable[[], Any] = self.iterate
        self.iterations_per_run = 1

    def multiply(self) -> None:
        """product = A direction, after the neighbours' rows have come."""
        self.border.zero_()
        self.border[2 * self.rank].copy_(self.direction[0])
        self.border[2 * self.rank + 1].copy_(self.direction[-1])
        self.sum_border()
        if self.rank > 0:
            self.padded[0].copy_(self.border[2 * self.rank - 1])
        if self.rank + 1 < self.num_ranks:
            self.padded[-1].copy_(self.border[2 * self.rank + 2])
        torch.mul(self.direction, 4, out=self.product)
        self.product -= self.padded[:-2]
        self.product -= self.padded[2:]
        self.product[:, 1:] -= self.direction[:, :-1]
        self.product[:, :-1] -= self.direction[:, 1:]

    def dot(self, which: int, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        buffer = self.dots[which]
        buffer.zero_()
        buffer[0] = torch.dot(x.reshape(-1), y.reshape(-1))
        self.sum_dots[which]()
        return buffer[0]

    def start(self) -> None:
        self.solution.zero_()
        self.residual.copy_(self.right)
        self.direction.copy_(self.right)
        self.norm.copy_(self.dot(1, self.residual, self.residual))

    def iterate(self) -> None:
        self.multiply()
        step = self.norm / self.dot(0, self.direction, self.product)
        self.solution.add_(self.direction * step)
        self.residual.sub_(self.product * step)
        norm = self.dot(1, self.residual, self.residual)
        self.direction.mul_(norm / self.norm).add_(self.residual)
        self.norm.copy_(norm)

    def solve(self, tolerance: float, limit: int) -> tuple[int, float]:
        """Iterations, and the true residual: that of the solution, relative to the right side."""
        self.start()
        first = self.norm.item()
        count = 0
        while count < limit and self.norm.item() > tolerance**2 * first:
            self.iterate()
            count += 1
        self.direction.copy_(self.solution)
        self.multiply()
        self.residual.copy_(self.right - self.product)
        left = self.dot(1, self.residual, self.residual).item()
        return count, (left / first) ** 0.5

    def capture(self) -> None:
        self.start()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            self.iterate()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(PER_GRAPH):
                self.iterate()
        self.run, self.iterations_per_run = graph.replay, PER_GRAPH

    def time_us(self, iterations: int) -> float:
        """Per iteration, the slowest rank's."""
        self.start()
        self.session.barrier()
        self.run()
        self.session.synchronize()
        runs = max(1, iterations // self.iterations_per_run)
        start = time.perf_counter()
        for _ in range(runs):
            self.run()
        self.session.synchronize()
        us = (time.perf_counter() - start) * 1e6 / (runs * self.iterations_per_run)
        return self.session.slowest([us])[0]


def worker(session: Session, args: argparse.Namespace) -> dict[str, Any]:
    torch.set_grad_enabled(False)
    tolerance = 1e-4 if session.is_cuda else 1e-8
    dtype = torch.float32 if session.is_cuda else torch.float64
    reducers = make_reducers(session, dtype)
    solvers = [Solver(reducer, session, args.grid, dtype) for reducer in reducers]
    solved = {}
    for solver in solvers:
        count, left = solver.solve(tolerance, 10 * args.grid)
        solved[solver.reducer.name] = {"iterations": count, "residual": left}
        if not left < 10 * tolerance:
            raise RuntimeError(f"{solver.reducer.name}: residual {left:.3g} after {count}")
        if session.is_cuda:
            solver.capture()
    us: dict[str, list[float]] = {solver.reducer.name: [] for solver in solvers}
    for trial in range(TRIALS):
        turn = trial % len(solvers)
        for solver in solvers[turn:] + solvers[:turn]:
            us[solver.reducer.name].append(solver.time_us(args.iterations))
        session.say(f"  trial {trial + 1} of {TRIALS} done")
    one = solvers[0]
    return {
        "us": us,
        "solved": solved,
        "variants": {solver.reducer.name: solver.reducer.about for solver in solvers},
        "border_bytes": one.border.numel() * one.border.element_size(),
        "dtype": str(one.dtype),
        "tolerance": tolerance,
    }


def make_report(args: argparse.Namespace, results: reproduce.Results, out: Path) -> None:
    plt = plot.pyplot()
    figure, every = plt.subplots(1, len(results), figsize=(5 * len(results), 3.5), squeeze=False)
    body = ""
    for axes, (num_ranks, data) in zip(every[0], results.items(), strict=True):
        base = reproduce.mean_deviation(data["us"]["baseline"])[0]
        flops = FLOPS_PER_POINT * args.grid**2 / num_ranks
        rows = []
        for name, us in data["us"].items():
            mean, deviation = reproduce.mean_deviation(us)
            solved = data["solved"][name]
            rows.append(
                [
                    *[name, data["variants"][name], reproduce.shown(mean, deviation)],
                    *[f"{flops / mean / 1e3:.3f}", f"{base / mean:.2f}"],
                    f"{solved['iterations']} to {solved['residual']:.1e}",
                ]
            )
            axes.bar(name, flops / mean / 1e3, color="#9ccf9f")
        head = [
            "variant",
            "what reduces",
            "us per iteration",
            "GFLOP/s per rank",
            "times",
            "solved",
        ]
        title = (
            f"{num_ranks} ranks, {args.grid} x {args.grid}, {data['dtype']}, sums of "
            f"{report.short_size(data['border_bytes'])}, 16 B and 16 B"
        )
        body += f"### {title}\n\n{report.markdown_table(head, rows)}\n"
        axes.set_title(title, fontsize=7)
        axes.set_ylabel("GFLOP/s per rank")
        axes.tick_params(axis="x", labelsize=6, rotation=20)
    body += f"Mean and deviation of {TRIALS} trials of {args.iterations} iterations.\n"
    reproduce.write_markdown(out, "Conjugate gradients (figure 14's kind)", results, body)
    figure.tight_layout()
    plot.save(figure, out.with_suffix(".png"))


if __name__ == "__main__":
    parser = reproduce.make_parser(NAME, __doc__, "2")
    parser.add_argument("--grid", type=int, default=240)
    parser.add_argument("--iterations", type=int, default=200)
    sys.exit(reproduce.main(NAME, parser, worker, make_report, __file__))
