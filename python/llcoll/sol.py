"""The speed of light of this machine: `torchrun --nproc-per-node 2 -m llcoll.sol`.

The least that an all-reduce of one cache line can take (section VI of the paper behind llcoll's
protocols, "Measuring the speed of light of AllReduce"): on a GPU its input is read from L2, the
line is stored into the peers' L2, and seen there by a load: two L2 round trips and a remote store.
The round trip is measured by fences, as in the paper, and by dependent loads; the remote store is
what a ping-pong of packets takes beyond its polls. On the CPU the bound is the way of a cache line
from one core to another. Then every algorithm is measured at 128 bytes and set against the bound.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from . import _C, _ops
from .bench import device as places
from .bench import options, report
from .bench.cases import Case
from .bench.contenders import Llcoll, usable_algorithms
from .bench.forms import Cell
from .bench.session import Session, open_session, single_rank_environment
from .bench.timing import Effort, measure_cell

LINE_BYTES = 128
CPU_TRIPS, CPU_BATCHES = 2000, 9
CUDA_TRIPS = 2000


@dataclass
class SpeedOfLight:
    bound_us: float
    how: str
    parts_ns: dict[str, float] = field(default_factory=dict)

    def data(self) -> dict[str, Any]:
        return asdict(self)


def _cpu(session: Session) -> SpeedOfLight:
    own = min(os.sched_getaffinity(0))
    cpus = []
    for rank in range(session.world_size):
        cpus.append(int(session.slowest([float(own if rank == session.rank else -1)])[0]))
    if len(set(cpus)) < 2:  # ranks that no core is kept for: any two cores
        cpus = sorted(os.sched_getaffinity(0))[:2]
    parts: dict[str, float] = {}
    if session.rank == 0:  # the others sleep in the exchange below
        for other in sorted(set(cpus) - {cpus[0]})[:8]:
            ns = _C.ping_pong(cpus[0], other, CPU_TRIPS, CPU_BATCHES)
            parts[f"cache line, CPU {cpus[0]} to {other}"] = statistics.median(ns)
    parts = session.from_rank_0(parts)
    if not parts:
        return SpeedOfLight(float("nan"), "one CPU: nothing to pass a line to")
    bound = max(parts.values()) / 1e3
    return SpeedOfLight(bound, "one way of a cache line between two cores, the slowest pair", parts)


def _cuda(session: Session) -> SpeedOfLight:
    backend = _ops.backend("cuda")
    loads = fenced = store = 0.0
    session.synchronize()
    session.barrier()
    if session.rank == 0:  # alone on the GPU: the others wait on the host
        stream = torch.cuda.current_stream().cuda_stream
        loads, fenced, store = backend.probe_memory(stream)
    loads, fenced, store = session.slowest([loads, fenced, store])
    one_way: list[float] = []
    for peer in range(1, session.world_size):
        ns = 0.0
        session.barrier()
        if session.rank in (0, peer):
            ns = backend.ping_pong(
                session.communicator.group_name, peer if session.rank == 0 else 0, CUDA_TRIPS
            )
        one_way.append(session.slowest([ns])[0])
    parts = {
        "L2 round trip, dependent loads": loads,
        "L2 round trip, store and fence": fenced,
        "store, issue only": store,
    }
    if not one_way:
        return SpeedOfLight((2 * loads + store) / 1e3, "2 L2 round trips and a local store", parts)
    # A ping-pong's half is a remote store and one poll's round trip.
    parts["ping-pong of packets, one way, slowest pair"] = max(one_way)
    parts["remote store"] = max(max(one_way) - loads, 0.0)
    parts["bound with the round trip by fences"] = 2 * fenced + max(max(one_way) - fenced, 0.0)
    bound = 2 * loads + parts["remote store"]
    how = "2 L2 round trips (dependent loads) and a remote store"
    return SpeedOfLight(bound / 1e3, how, parts)


def measure(session: Session) -> SpeedOfLight:
    """Collective; a fraction of a second."""
    return _cuda(session) if session.is_cuda else _cpu(session)


def distances(session: Session, light: SpeedOfLight) -> list[dict[str, Any]]:
    """Each algorithm at 128 bytes: us, and times the bound. On the CPU without Python (in-kernel);
    on CUDA inside one launch where there is such a kernel, and in a graph."""
    dtype = torch.bfloat16 if session.is_cuda else torch.float32
    case = Case(dtype, "sum", session.world_size)
    names = [a for a in usable_algorithms(session, dtype, "sum") if a != "torch"]
    found = []
    for mode in ("in-kernel", "graph") if session.is_cuda else ("in-kernel", "eager"):
        cell = Cell(session, case, LINE_BYTES // dtype.itemsize, mode)
        rows = measure_cell(cell, [Llcoll(name) for name in names], Effort(iters=2000))
        for row in rows:
            best = row.best
            if best is not None:
                ratio = best.us / light.bound_us
                found.append(
                    {"mode": mode, "algorithm": row.contender, "us": best.us, "ratio": ratio}
                )
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "llcoll.sol", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, metavar="FILE")
    options.add_place(parser)
    args = parser.parse_args(argv)
    single_rank_environment()
    choice = places.choose(args, sys.argv[1:] if argv is None else argv, "llcoll.sol")
    if isinstance(choice, int):
        return choice
    with open_session(choice) as session:
        light = measure(session)
        session.say(f"# {session.world_size} ranks, {session.words}")
        for name, ns in light.parts_ns.items():
            session.say(f"{name:<48} {ns:>9.1f} ns")
        session.say(f"{'bound: ' + light.how:<48}\n{'':<48} {light.bound_us * 1e3:>9.1f} ns")
        found = distances(session, light)
        session.say(f"\n{'at 128 B':<12} {'algorithm':<20} {'us':>8} {'x bound':>8}")
        for one in found:
            session.say(
                f"{one['mode']:<12} {one['algorithm']:<20} {one['us']:>8.3f} {one['ratio']:>8.2f}"
            )
        if args.json and session.rank == 0:
            data = {"about": report.about(session), "speed_of_light": light.data()}
            report.write_json(args.json, data | {"at_128_bytes": found})
    return 0


if __name__ == "__main__":
    sys.exit(main())
