"""The command: rows as they come, a footer, files."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

import llcoll

from . import device as places
from . import options, plot, report
from .cases import Case
from .contenders import Contender, Llcoll, usable_algorithms
from .forms import CALLS_PER_GRAPH, Cell
from .peers import make_peers
from .session import Session, open_session, single_rank_environment
from .timing import Effort, Regret, Row, measure_cell, regrets


@contextmanager
def progress_bar(session: Session, what: str, total: int) -> Iterator[Callable[[], None]]:
    """On rank 0, where stderr is a terminal and rich is installed."""
    if session.rank != 0 or not sys.stderr.isatty():
        yield lambda: None
        return
    try:
        from rich.console import Console
        from rich.progress import Progress
    except ImportError:
        yield lambda: None
        return
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda: progress.advance(task)


def make_contenders(args: Any, session: Session) -> tuple[list[Contender], dict[str, str]]:
    usable = usable_algorithms(session, options.TYPES[args.datatype], args.op)
    names = ["auto", *usable] if args.algorithm is None else list(args.algorithm)
    asked = set(names if args.algorithm is not None else ["auto"])
    if args.regret:
        names = list(dict.fromkeys(["auto", *names, *usable]))
    own: list[Contender] = [Llcoll(name, name not in asked, args.regret) for name in names]
    peers, missing = make_peers(session, args.compare) if args.compare else ([], {})
    return own + peers, missing


def header(args: Any, session: Session, contenders: list[Contender]) -> None:
    say = session.say
    table = session.communicator.table
    say(f"# llcoll {llcoll.__version__}, torch {torch.__version__}, {session.world_size} ranks")
    say(f"# backend: {session.words}")
    say(
        f"# minbytes {args.minbytes} maxbytes {args.maxbytes} step factor {args.stepfactor} "
        f"iters {args.iters} warmup {args.warmup_iters} check {args.check} "
        f"mode {args.mode} algorithm {','.join(args.algorithm or ['all'])}"
    )
    say(f"# selection: {table.source} ({session.communicator.settings.policy})")
    for contender in contenders:
        if contender.is_peer:
            say(f"# peer: {contender.name} {contender.version}")


def footer(rows: list[Row], found: list[Regret], args: Any, session: Session) -> dict[str, Any]:
    say = session.say
    wrong = report.num_wrong(rows)
    words = "not checked" if not args.check else "OK" if not wrong else "FAILED"
    say(f"# Out of bounds values : {wrong} {words}")
    say(f"# Avg bus bandwidth    : {report.average_busbw(rows, session.world_size):.6g}")
    say(f"# Backend              : {session.words}")
    summary: dict[str, Any] = {
        "wrong": wrong,
        "average_busbw": report.average_busbw(rows, session.world_size),
        "peers": report.comparisons(rows),
        "regret": report.regret_summary(found),
    }
    for peer, figures in summary["peers"].items():
        say(
            f"# against {peer:<12} : {figures['up_to_64_KiB']:.2f} times faster up to 64 KiB, "
            f"{figures['all_sizes']:.2f} over all sizes; least lower bound "
            f"{figures['least_lower_bound']:.2f} at {figures['least_at_bytes']} B"
        )
    if found:
        worst = summary["regret"]["worst"]
        say(
            f"# auto regret          : {summary['regret']['geometric_mean']:.3f}; worst "
            f"{worst['ratio']:.2f} at {worst['num_bytes']} B, where {worst['best']} is fastest"
        )
    return summary


def run(args: Any, choice: places.Choice) -> int:
    with open_session(choice) as session:
        contenders, missing = make_contenders(args, session)
        header(args, session, contenders)
        for name, reason in missing.items():
            session.say(f"# missing: {name}: {reason}")
        session.say("#\n" + report.HEAD)
        case = Case(options.TYPES[args.datatype], args.op, session.world_size)
        rounds = max(args.cudagraph, 1) if args.cudagraph else args.rounds
        effort = Effort(args.iters, rounds, args.warmup_iters, bool(args.check))
        per_graph = args.iters if args.cudagraph else min(args.iters, CALLS_PER_GRAPH)
        rows: list[Row] = []
        found: list[Regret] = []
        sizes = options.sizes(args)
        with progress_bar(session, "sizes x rounds", len(sizes) * rounds) as advance:
            for num_bytes in sizes:
                numel = num_bytes // case.dtype.itemsize
                cell = Cell(session, case, numel, args.mode, per_graph, args.symmetric)
                here = measure_cell(cell, contenders, effort, advance)
                for row in here:
                    session.say(report.table_row(row, args.datatype, args.op, session.world_size))
                rows += here
                if args.regret:
                    found += regrets(here)
        summary = footer(rows, found, args, session)
        write_files(args, session, rows, summary, contenders, missing)
        for contender in contenders:
            contender.close()
    return 1 if summary["wrong"] else 0


def write_files(
    args: Any,
    session: Session,
    rows: list[Row],
    summary: dict[str, Any],
    contenders: list[Contender],
    missing: dict[str, str],
) -> None:
    if not (args.json or args.csv or args.plot):
        return
    from ..sol import measure  # it needs this package

    light = measure(session)
    if session.rank != 0:
        return
    about = report.about(session) | {
        "mode": args.mode,
        "symmetric": args.symmetric,
        "datatype": args.datatype,
        "op": args.op,
        "iters": args.iters,
        "contenders": {contender.name: contender.version for contender in contenders},
        "missing": missing,
    }
    if args.json:
        data = [report.row_data(row, session.world_size) for row in rows]
        report.write_json(
            args.json, {"about": about, "speed_of_light": light.data(), "rows": data} | summary
        )
    if args.csv:
        report.write_csv(args.csv, rows, session.world_size)
    if args.plot:
        title = (
            f"{session.world_size} ranks, {args.datatype}, {args.mode}: {session.words}\n"
            f"{about['date']}, torch {torch.__version__}"
        )
        plot.plot_rows(args.plot, rows, title, light.bound_us)


def main(argv: list[str] | None = None) -> int:
    args = options.parse_args(argv)
    single_rank_environment()
    choice = places.choose(args, sys.argv[1:] if argv is None else argv)
    if isinstance(choice, int):
        return choice
    return run(args, choice)
