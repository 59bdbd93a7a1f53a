"""Figure 11: latency against size for every algorithm and peer, mean and deviation of 10 trials,
and below it 128 bytes against the number of ranks with the speed of light.

    python benchmarks/fig11_latency.py --out results --ranks 2,4

Peers are those of llcoll.bench --compare: what is installed runs, the rest is named. NVSHMEM has no
driver here; MSCCL++, NCCLX and the authors' artifact come as NCCL-compatible libraries
(LLCOLL_BENCH_NCCL_LIBS, docs/benchmarks.md).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import reproduce

from llcoll import sol
from llcoll.bench import options, plot, report
from llcoll.bench.cases import Case
from llcoll.bench.contenders import Contender, Llcoll, usable_algorithms
from llcoll.bench.forms import Cell
from llcoll.bench.peers import make_peers
from llcoll.bench.session import Session
from llcoll.bench.timing import Effort, Figure, Row, geometric_mean, measure_cell

NAME = "fig11_latency"
TRIALS = 10
LINE = 128


def worker(session: Session, args: argparse.Namespace) -> dict[str, Any]:
    dtype = options.TYPES[args.dtype]
    mode = "graph" if session.is_cuda else "eager"
    names = usable_algorithms(session, dtype, "sum")
    if not session.is_cuda:
        names.remove("torch")  # Gloo is a peer by its own name
    peers, missing = make_peers(session, args.compare)
    everyone: list[Contender] = [Llcoll(name, name_auto=True) for name in ["auto", *names]]
    everyone += peers
    light = sol.measure(session)
    rows: list[Row] = []
    num_bytes = LINE
    while num_bytes <= args.maxbytes:
        cell = Cell(
            session, Case(dtype, "sum", session.world_size), num_bytes // dtype.itemsize, mode
        )
        iters = max(TRIALS, min(args.iters, (32 << 20) // num_bytes))
        rows += measure_cell(cell, everyone, Effort(iters, TRIALS, 20))
        if any(figure.wrong for row in rows for figure in row.figures):
            raise RuntimeError("a wrong result: see llcoll.bench")
        session.say(f"  {report.short_size(num_bytes)} done")
        num_bytes *= args.stepfactor
    for contender in everyone:
        contender.close()
    return {
        "speed_of_light": light.data(),
        "missing": missing,
        "versions": {peer.name: peer.version for peer in peers},
        "rows": [report.row_data(row, session.world_size) for row in rows],
    }


def as_rows(data: dict[str, Any]) -> list[Row]:
    found = []
    for row in data["rows"]:
        figures = [
            Figure(form == "in_place", row[form]["wrong"], row[form]["rounds"])
            for form in ("out_of_place", "in_place")
            if row[form] is not None and "rounds" in row[form]
        ]
        found.append(
            Row(row["contender"], row["peer"], row["bytes"], row["count"], figures, ran=row["ran"])
        )
    return found


def table(rows: list[Row]) -> str:
    names = list(dict.fromkeys(row.contender for row in rows if row.figures))
    lines = []
    for num_bytes in sorted({row.num_bytes for row in rows}):
        here = {row.contender: row.best for row in rows if row.num_bytes == num_bytes}
        cells = []
        for name in names:
            best = here.get(name)
            pair = None if best is None else reproduce.mean_deviation(best.rounds)
            cells.append("-" if pair is None else reproduce.shown(*pair))
        lines.append([report.short_size(num_bytes), *cells])
    return report.markdown_table(["size", *names], lines)


def speedup(rows: list[Row]) -> str:
    """As the paper labels its regions: over the fastest existing implementation at each size."""
    ratios = []
    for num_bytes in sorted({row.num_bytes for row in rows}):
        here = [row for row in rows if row.num_bytes == num_bytes and row.best is not None]
        own = [row.best.us for row in here if not row.is_peer]  # type: ignore[union-attr]
        theirs = [row.best.us for row in here if row.is_peer]  # type: ignore[union-attr]
        if own and theirs and min(own) < min(theirs):
            ratios.append(min(theirs) / min(own))
    if not ratios:
        return "No size at which llcoll is fastest, or no peer.\n"
    mean = geometric_mean(ratios)
    return (
        f"llcoll is fastest at {len(ratios)} sizes, there {mean:.2f} times the fastest peer "
        "(geometric mean).\n"
    )


def make_report(args: argparse.Namespace, results: reproduce.Results, out: Path) -> None:
    plt = plot.pyplot()
    count = len(results)
    figure, every = plt.subplots(2, count, figsize=(6 * count, 8), squeeze=False)
    body = ""
    line_us: dict[str, dict[int, float]] = {}
    for column, (num_ranks, data) in enumerate(results.items()):
        rows = as_rows(data)
        bound = data["speed_of_light"]["bound_us"]
        axes = every[0][column]
        plot.draw_latency(axes, rows, bound)
        axes.set_title(f"{num_ranks} ranks, {args.dtype}", fontsize=9)
        axes.legend(fontsize=6, ncol=2)
        body += f"### {num_ranks} ranks (us; speed of light {bound:.3f})\n\n{table(rows)}\n"
        body += speedup(rows) + "\n"
        for name, why in data["missing"].items():
            body += f"Missing: {name}: {why}.\n"
        for row in rows:
            if row.num_bytes == LINE and row.best is not None:
                line_us.setdefault(row.contender, {})[num_ranks] = row.best.us
        draw_line(
            every[1][column],
            {n: us[num_ranks] for n, us in line_us.items() if num_ranks in us},
            bound,
        )
    body += f"\nThe faster of in place and out of place; mean and deviation of {TRIALS} trials.\n"
    reproduce.write_markdown(out, "Latency against size and peers (figure 11)", results, body)
    figure.tight_layout()
    plot.save(figure, out.with_suffix(".png"))


def draw_line(axes: Any, us: dict[str, float], bound: float) -> None:
    """128 bytes: bars, and their distance from the bound."""
    names = sorted(us, key=us.__getitem__)
    axes.barh(names, [us[name] for name in names], color="#9ccf9f")
    axes.axvline(bound, color="black", linestyle="--", linewidth=1)
    for name in names:
        axes.annotate(f"+{us[name] / bound - 1:.0%}", (us[name], name), fontsize=6, va="center")
    axes.set_xscale("log")
    axes.set_xlabel("us at 128 B; dashed: speed of light")
    axes.tick_params(axis="y", labelsize=7)


if __name__ == "__main__":
    parser = reproduce.make_parser(NAME, __doc__, "2")
    parser.add_argument("-d", "--dtype", choices=sorted(options.TYPES), default="float")
    parser.add_argument("-e", "--maxbytes", type=options.parse_size, default=16 << 20)
    parser.add_argument("-f", "--stepfactor", type=int, default=2)
    parser.add_argument("-n", "--iters", type=int, default=500)
    parser.add_argument("--compare", type=options.words, default=["all"])
    sys.exit(reproduce.main(NAME, parser, worker, make_report, __file__))
