"""A performance model: `torchrun --nproc-per-node 2 -m llcoll.model [--verify]`.

    us(b, N) = rounds bound + overhead + peer (N - 1) + traffic(N) (slope b + far max(0, b - knee))

rounds and traffic are the algorithm's own (below); the bound is the probe's (llcoll.sol); overhead,
peer, slope, far (us and us per byte, none negative) and the knee, beyond which messages leave a
cache, are fitted to a few measured points by least squares of relative errors. Points of one world
size cannot tell overhead from peer: the model then has one figure for both.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from .bench import device as places
from .bench import options, report
from .bench.cases import Case
from .bench.contenders import Llcoll, usable_algorithms
from .bench.forms import Cell
from .bench.session import Session, open_session, single_rank_environment
from .bench.timing import Effort, geometric_mean, measure_cell
from .model_fit import Model, Point, Terms, fit, rounds_of, traffic_of
from .sol import measure as measure_light

PROBE_SIZES = (64, 2 << 10, 16 << 10, 128 << 10, 1 << 20, 4 << 20)
VERIFY_SIZES = (
    8,
    512,
    4 << 10,
    8 << 10,
    32 << 10,
    64 << 10,
    256 << 10,
    512 << 10,
    2 << 20,
    8 << 20,
)
TARGET_ROUND_US = 500.0
ROUNDS = 7
__all__ = ["Errors", "Model", "Point", "Terms", "errors", "fit", "rounds_of", "traffic_of"]
Measure = Callable[[int, Sequence[str]], dict[str, float]]


def measurer(session: Session, dtype: torch.dtype, guess_us: float = 5.0) -> Measure:
    """measure(bytes, algorithms) -> us each: graphs on CUDA, no Python on the CPU; checked first,
    the mean of both forms where there are two. Raises RuntimeError on a wrong result."""
    case = Case(dtype, "sum", session.world_size)
    mode = "graph" if session.is_cuda else "in-kernel"
    last = {"us": guess_us, "bytes": 64.0}

    def measure(num_bytes: int, algorithms: Sequence[str]) -> dict[str, float]:
        cell = Cell(session, case, max(1, num_bytes // dtype.itemsize), mode)
        # A round lasts about half a millisecond, from what the size before took.
        us = last["us"] * max(1.0, num_bytes / max(last["bytes"], 32 << 10))
        calls = int(min(1000, max(2, TARGET_ROUND_US / us)))
        effort = Effort(iters=ROUNDS * calls, rounds=ROUNDS, warmup=2 * calls)
        rows = measure_cell(cell, [Llcoll(name, True) for name in algorithms], effort)
        found = {}
        for row in rows:
            if any(figure.wrong > 0 for figure in row.figures):
                raise RuntimeError(f"{row.contender}: wrong result at {num_bytes} B of {dtype}")
            if row.figures:
                found[row.contender] = geometric_mean([figure.us for figure in row.figures])
        last.update(us=min(found.values()), bytes=float(num_bytes))
        return found

    return measure


def fit_here(session: Session, measure: Measure, algorithms: Sequence[str]) -> Model:
    points = [
        Point(name, session.world_size, num_bytes, us)
        for num_bytes in PROBE_SIZES
        for name, us in measure(num_bytes, algorithms).items()
    ]
    return fit(points, measure_light(session).bound_us)


@dataclass(frozen=True)
class Errors:
    """Against measurements at sizes that the model was not fitted to."""

    median: float  # of |predicted / measured - 1|
    worst: float
    worst_at: str
    picks: int  # sizes at which it named the algorithm that measured fastest
    sizes: int
    regret: float  # of following its picks: geometric mean


def errors(model: Model, measured: dict[int, dict[str, float]], world_size: int) -> Errors:
    relative = {}
    picks, ratios = 0, []
    for num_bytes, times in measured.items():
        for name, us in times.items():
            if name in model.terms:
                off = abs(model.predict(name, num_bytes, world_size) / us - 1)
                relative[f"{name} at {report.short_size(num_bytes)}"] = off
        picked = model.fastest(num_bytes, world_size)
        best = min(times, key=times.__getitem__)
        picks += picked == best
        ratios.append(times.get(picked, max(times.values())) / times[best])
    worst = max(relative, key=relative.__getitem__)
    return Errors(
        statistics.median(relative.values()),
        relative[worst],
        worst,
        picks,
        len(measured),
        geometric_mean(ratios),
    )


def measured_crossovers(measured: dict[int, dict[str, float]]) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    for num_bytes, times in sorted(measured.items()):
        name = min(times, key=times.__getitem__)
        if not found or found[-1][1] != name:
            found.append((num_bytes, name))
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "llcoll.model", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-d", "--dtype", choices=sorted(options.TYPES), default="float")
    parser.add_argument("--verify", action="store_true", help="measure other sizes, show errors")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options.add_place(parser)
    args = parser.parse_args(argv)
    single_rank_environment()
    choice = places.choose(args, sys.argv[1:] if argv is None else argv, "llcoll.model")
    if isinstance(choice, int):
        return choice
    with open_session(choice) as session:
        dtype = options.TYPES[args.dtype]
        names = [a for a in usable_algorithms(session, dtype, "sum") if a != "torch"]
        measure = measurer(session, dtype)
        start = time.monotonic()
        model = fit_here(session, measure, names)
        took = session.slowest([time.monotonic() - start])[0]
        data: dict[str, Any] = {
            "bound_us": model.bound_us,
            "fit_seconds": took,
            "terms": {name: asdict(terms) for name, terms in model.terms.items()},
            "crossovers": model.crossovers(session.world_size),
        }
        _show(session, model, took)
        if args.verify:
            measured = {num_bytes: measure(num_bytes, names) for num_bytes in VERIFY_SIZES}
            found = errors(model, measured, session.world_size)
            data |= {
                "errors": asdict(found),
                "measured": {str(size): times for size, times in measured.items()},
                "measured_crossovers": measured_crossovers(measured),
            }
            session.say(
                f"\nerror at {found.sizes} other sizes: median {found.median:.0%}, worst "
                f"{found.worst:.0%} ({found.worst_at}); named the fastest at {found.picks} of "
                f"{found.sizes} sizes; following it costs {found.regret - 1:.1%}"
            )
            words = [f"{report.short_size(s)} {n}" for s, n in measured_crossovers(measured)]
            session.say("measured crossovers : " + ", ".join(words))
        if args.json and session.rank == 0:
            report.write_json(args.json, {"about": report.about(session), "model": data})
    return 0


def _show(session: Session, model: Model, took: float) -> None:
    say = session.say
    say(f"# {session.world_size} ranks, {session.words}; fitted in {took:.1f} s")
    say(f"# bound {model.bound_us:.3f} us a round\n")
    say(f"{'algorithm':<20} {'latency us':>10} {'GB/s':>8} {'beyond':>10} {'GB/s':>8} {'error':>7}")
    for name, t in model.terms.items():
        latency = model.predict(name, 0, session.world_size)
        traffic = traffic_of(name, session.world_size)
        near = t.slope * traffic * 1e3
        far = near + t.far * traffic * 1e3
        say(
            f"{name:<20} {latency:>10.3f} {1 / near if near else float('inf'):>8.2f} "
            f"{report.short_size(t.knee_bytes):>10} {1 / far if far else float('inf'):>8.2f} "
            f"{t.fitted_error:>7.1%}"
        )
    words = [f"{report.short_size(s)} {n}" for s, n in model.crossovers(session.world_size)]
    say("predicted crossovers: " + ", ".join(words))


if __name__ == "__main__":
    sys.exit(main())
