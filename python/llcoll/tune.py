"""The tuner: `torchrun --nproc-per-node 2 -m llcoll.tune` writes this machine's selection table.

Every algorithm that selection may pick is checked, then timed, for float32, bfloat16 (which stands
for every other floating type) and int32 (integers), from 8 bytes up; the performance model, fitted
first, leaves out what cannot win. The fastest at each size makes the rows of the "fast" policy, the
fastest of those that keep bits those of "invariant". A change of algorithm must pay a few per cent.
Sizes beyond the largest measured one stay as built in.

The table is the same on every rank (each figure is the slowest rank's, and the ranks compare), and
goes to --out, else LLCOLL_TUNING_FILE, else the cache directory, from where llcoll.init loads it.
Nothing is written if any result was wrong. Last, a communicator with the new table is measured
against the algorithms: auto's regret.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import math
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import llcoll

from . import _C, tables
from .bench import device as places
from .bench import options, report
from .bench.cases import Case
from .bench.contenders import Llcoll, usable_algorithms
from .bench.forms import Cell
from .bench.session import Session, open_session, single_rank_environment
from .bench.timing import Effort, Regret, geometric_mean, measure_cell, regrets
from .model import Model, fit_here, measurer
from .rendezvous import check_same

DTYPES = {"float32": torch.float32, "float": torch.bfloat16, "integer": torch.int32}
SMALLEST, LARGEST_CPU, LARGEST_CUDA = 8, 16 << 20, 32 << 20
CANNOT_WIN = 2.5  # times the model's best
PRICE = 0.06  # of a row: it must gain 6% at one size, or 3% at two
MAX_ROWS = 12
VERIFY_SIZES = (8, 256, 4 << 10, 32 << 10, 256 << 10, 2 << 20)
Times = dict[int, dict[str, float]]  # bytes -> algorithm -> us


def smooth(times: Times, allowed: Sequence[str], price: float) -> list[str]:
    """An algorithm for each size, in growing order: the least sum of log(time / best time), where a
    change from one size to the next costs `price`. So noise at one size makes no row."""
    paths: dict[str, tuple[float, list[str]]] = {"": (0.0, [])}
    for num_bytes in sorted(times):
        here = {name: us for name, us in times[num_bytes].items() if name in allowed}
        best = min(here.values())
        longer: dict[str, tuple[float, list[str]]] = {}
        for name, us in here.items():
            cost, path = min(
                (cost + (price if last not in ("", name) else 0.0), path)
                for last, (cost, path) in paths.items()
            )
            longer[name] = (cost + math.log(us / best), [*path, name])
        paths = longer
    return min(paths.values())[1]


def rows_from(times: Times, allowed: Sequence[str], price: float = PRICE) -> list[list[Any]]:
    """[bytes, algorithm] rows up to the largest measured size. Crossovers lie between two measured
    sizes, in the middle of their logarithms."""
    sizes, best = sorted(times), smooth(times, allowed, price)
    rows: list[list[Any]] = []
    for idx, num_bytes in enumerate(sizes):
        last = idx + 1 == len(sizes)
        if last or best[idx + 1] != best[idx]:
            edge = num_bytes if last else int((num_bytes * sizes[idx + 1]) ** 0.5)
            rows.append([edge, best[idx]])
    return rows if len(rows) <= MAX_ROWS else rows_from(times, allowed, 2 * price)


def with_built_in_end(rows: list[list[Any]], built_in: str) -> list[list[Any]]:
    """The measured rows, the last one as far as the built-in row in which the measuring ended; then
    the built-in table's rows for what is larger."""
    result = [list(row) for row in rows]
    largest, is_open = result[-1][0], False
    for row in built_in.split(","):
        limit, algorithm = row.split()
        size = None if limit == "*" else int(limit)
        if size is not None and size < largest:
            continue
        if not is_open or result[-1][1] == algorithm:
            result[-1][0] = size
            is_open = True
        else:
            result.append([size, algorithm])
    return result


def built_in_rows(machine: tables.Machine) -> dict[str, str]:
    parts = (part.split(":") for part in machine.default()[2].split(";"))
    return {name.strip(): rows for name, rows in parts}


def measure_class(session: Session, dtype: torch.dtype, largest: int) -> tuple[Times, Model]:
    names = usable_algorithms(session, dtype, "sum", low_precision=True)
    if not session.is_cuda:
        names.remove("torch")  # Gloo: hundreds of times slower at every size
    measure = measurer(session, dtype)
    model = fit_here(session, measure, [name for name in names if name != "torch"])
    short = str(dtype).removeprefix("torch.")
    keeping_bits = [a for a in model.terms if _C.usable(a, short, "sum", "invariant", False)]
    times: Times = {}
    num_bytes = SMALLEST
    while num_bytes <= largest:
        # Among those that every policy allows: each policy's rows need some.
        limit = CANNOT_WIN * min(
            model.predict(name, num_bytes, session.world_size) for name in keeping_bits
        )
        wanted = [
            name
            for name in names
            if name not in model.terms
            or model.predict(name, num_bytes, session.world_size) <= limit
        ]
        times[num_bytes] = measure(num_bytes, wanted)
        num_bytes *= 2
    return times, model


def make_entry(session: Session, measured: dict[str, Times]) -> dict[str, Any]:
    built_in = built_in_rows(session.machine)
    rows: dict[str, tables.Rows] = {}
    for policy in ("fast", tables.LOW_PRECISION, "invariant"):
        rows[policy] = {}
        low = policy == tables.LOW_PRECISION
        for name, times in measured.items():
            dtype = str(DTYPES[name]).removeprefix("torch.")
            allowed = [
                a
                for a in _C.algorithms()
                if _C.usable(a, dtype, "sum", "fast" if low else policy, low)
            ]
            rows[policy][name] = with_built_in_end(rows_from(times, allowed), built_in[name])
    where = report.about(session)
    return {
        "key": asdict(session.machine.key),
        "provenance": {
            "how": "measured by llcoll.tune",
            "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
            **{k: where[k] for k in ("llcoll", "torch", "kernel", "where")},
            "us": {
                name: {
                    str(num_bytes): {a: round(us, 3) for a, us in here.items()}
                    for num_bytes, here in times.items()
                }
                for name, times in measured.items()
            },
        },
        "rows": rows,
    }


def auto_regret(session: Session, name: str) -> list[Regret]:
    """With the communicator's own table, in a run of its own."""
    dtype = DTYPES[name]
    case = Case(dtype, "sum", session.world_size)
    mode = "graph" if session.is_cuda else "in-kernel"
    found = []
    for num_bytes in VERIFY_SIZES:
        cell = Cell(session, case, num_bytes // dtype.itemsize, mode)
        usable = usable_algorithms(session, dtype, "sum")
        if not session.is_cuda:
            usable.remove("torch")
        contenders = [Llcoll("auto"), *[Llcoll(a, may_be_dropped=True) for a in usable]]
        iters = int(min(2000, max(44, 4_000_000 / num_bytes)))
        found += regrets(measure_cell(cell, contenders, Effort(iters, 11, 20)))
    return found


def say_regret(session: Session, when: str) -> float:
    found = auto_regret(session, "float32")
    mean = geometric_mean([one.ratio for one in found])
    worst = max(found, key=lambda one: one.ratio)
    session.say(
        f"auto regret, float32, {when}: {mean:.3f}; worst {worst.ratio:.2f} at "
        f"{report.short_size(worst.num_bytes)}, where {worst.best} is fastest"
    )
    return mean


def target_path(given: Path | None) -> Path:
    named = os.environ.get("LLCOLL_TUNING_FILE", "")
    if given is not None:
        return given
    return tables.cache_path() if named in ("", tables.NO_FILE) else Path(named)


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "llcoll.tune", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="the table file; other machines' entries stay")
    parser.add_argument("-e", "--maxbytes", type=options.parse_size, help="largest size measured")
    parser.add_argument("--no-regret", action="store_true", help="leave out the last measurement")
    parser.add_argument("--show", action="store_true", help="print the table in use, measure none")
    options.add_place(parser)
    args = parser.parse_args(argv)
    if args.maxbytes is not None and args.maxbytes < 64:
        parser.error(f"--maxbytes {args.maxbytes} is below 64")
    return args


def show(session: Session) -> None:
    table = session.communicator.table
    name, why, rows = session.machine.default()
    session.say(f"machine   : {session.machine.key}")
    session.say(f"table     : {table.source}, hash {table.hash}")
    session.say(f"built in  : {name}: {why}")
    for part in (table.text or rows).split(";"):
        session.say(f"  {part.strip()}")


def tune(session: Session, args: argparse.Namespace, path: Path) -> None:
    start = time.monotonic()
    largest = args.maxbytes or (LARGEST_CUDA if session.is_cuda else LARGEST_CPU)
    measured = {}
    for name, dtype in DTYPES.items():
        measured[name], model = measure_class(session, dtype, largest)
        seconds = session.slowest([time.monotonic() - start])[0]
        session.say(f"{name}: {len(measured[name])} sizes, {seconds:.0f} s so far")
    entry = make_entry(session, measured)
    # Measured figures are agreed, so the rows must be: a difference is a defect, not noise.
    text = json.dumps(entry["rows"], sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    hashes = session.communicator.exchange("tune").all_gather_json(digest)
    check_same("tune", [{"the tuned table": one} for one in hashes])
    if int(os.environ.get("LOCAL_RANK", session.rank)) == 0:  # one on each host
        tables.store(path, entry)
    session.barrier()
    for name in DTYPES:
        words = [
            f"{algorithm} up to {'any size' if size is None else report.short_size(size)}"
            for size, algorithm in entry["rows"]["fast"][name]
        ]
        session.say(f"  {name:<8} {', '.join(words)}")
    session.say(f"table {digest} of {session.machine.key} -> {path}")


def main(argv: list[str] | None = None) -> int:
    args = parse_args(argv)
    if os.environ.get("LLCOLL_ALGORITHM", "auto") != "auto":
        sys.exit("llcoll.tune: unset LLCOLL_ALGORITHM: it would force every measurement")
    path = target_path(args.out)
    single_rank_environment()
    choice = places.choose(args, sys.argv[1:] if argv is None else argv, "llcoll.tune")
    if isinstance(choice, int):
        return choice
    if args.show:
        with open_session(choice) as session:
            show(session)
        return 0
    # The tuner measures every algorithm by name: the table in use does not matter.
    os.environ["LLCOLL_TUNING_FILE"] = tables.NO_FILE
    with open_session(choice, policy="fast") as session:
        session.say(f"# llcoll {llcoll.__version__}, {session.words}, {session.world_size} ranks")
        if session.communicator.settings.policy != "fast":
            sys.exit("llcoll.tune: it needs policy fast; unset LLCOLL_POLICY")
        if not args.no_regret:
            say_regret(session, "built-in table")
        try:
            tune(session, args, path)
        except RuntimeError as error:
            session.say(f"llcoll.tune: nothing written: {error}")
            return 1
        if args.no_regret:
            return 0
        llcoll.shutdown()
        session.barrier()
        os.environ["LLCOLL_TUNING_FILE"] = str(path)
        session.communicator = llcoll.init(device=session.device)
        say_regret(session, "tuned table")
    return 0


if __name__ == "__main__":
    sys.exit(main())
