"""Reads the flight records of a job's ranks and says where they part.

    python -m llcoll.diagnose DUMPS...

DUMPS are files that llcoll.dump() or a timeout wrote, or folders of them, of any number of groups.
Exit status: 0 where the ranks agree, 1 where they do not, 2 where nothing can be said.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# What must be the same on every rank. `numel` is one rank's own where parts are uneven. A launch id
# moves with replays of graphs, which may differ without harm; an epoch does not.
SAME = ("collective", "dtype", "op", "algorithm", "root", "uneven", "epoch")


class BadDump(Exception):
    pass


@dataclass
class Dump:
    """One rank's record of one group."""

    path: str
    group: str
    device: str
    rank: int
    world_size: int
    time: float
    reason: str
    awaited: int | None
    num_calls: int
    calls: dict[int, dict[str, Any]]


@dataclass
class Finding:
    """What the records of one group say. `call` is the first that went wrong, if one did."""

    group: str
    call: int | None = None
    differing: list[int] = field(default_factory=list)  # ranks that made another call than most
    absent: list[int] = field(default_factory=list)  # ranks that never came to it
    no_dump: list[int] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    @property
    def is_fault(self) -> bool:
        return self.call is not None


def read(path: Path) -> Dump:
    """Raises BadDump, with the path, for what is no flight record."""
    try:
        raw = json.loads(path.read_text())
        if not isinstance(raw, dict) or "calls" not in raw or "world_size" not in raw:
            raise BadDump(f"{path}: not a flight record of llcoll")
        if raw.get("version") != 1:
            raise BadDump(f"{path}: version {raw.get('version')!r}; this llcoll reads version 1")
        rank, world_size = int(raw["rank"]), int(raw["world_size"])
        if not 0 <= rank < world_size:
            raise BadDump(f"{path}: rank {rank} of {world_size}")
        calls = {int(call["sequence"]): call for call in raw["calls"]}
        for call in calls.values():
            for name in (*SAME, "numel", "bytes", "state"):
                call[name]
        return Dump(
            str(path),
            str(raw["group"]),
            str(raw["device"]),
            rank,
            world_size,
            float(raw["time"]),
            str(raw["reason"]),
            None if raw["awaited"] is None else int(raw["awaited"]),
            int(raw["num_calls"]),
            calls,
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadDump(f"{path}: {type(error).__name__}: {error}") from None


def expand(paths: Iterable[str]) -> list[Path]:
    """Files as they are; of a folder, those that a timeout or llcoll.dump named."""
    files: list[Path] = []
    for path in map(Path, paths):
        files += sorted(path.glob("llcoll-*.json")) if path.is_dir() else [path]
    return files


def signature(call: dict[str, Any]) -> tuple[Any, ...]:
    own = None if call["uneven"] else call["numel"]
    return (*(call[name] for name in SAME), own)


def describe(call: dict[str, Any]) -> str:
    count = f"{call['numel']} {call['dtype']} ({call['bytes']} bytes)"
    root = "" if call["root"] is None else f", root {call['root']}"
    uneven = ", uneven parts" if call["uneven"] else ""
    epoch = "" if call["epoch"] is None else f", epoch {call['epoch']}"
    if call["collective"] == "barrier":
        return f"barrier{epoch}"
    how = f"{call['op']}, {call['algorithm']}{root}{uneven}{epoch}"
    return f"{call['collective']} of {count}, {how}"


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _compare(finding: Finding, dumps: dict[int, Dump], world_size: int) -> None:
    """Looks for the first call where the ranks differ, or to which one did not come."""
    last = max(dump.num_calls for dump in dumps.values())
    first = max(min(dump.calls, default=dump.num_calls + 1) for dump in dumps.values())
    for sequence in range(first, last + 1):
        came = {r: d.calls[sequence] for r, d in dumps.items() if sequence in d.calls}
        absent = [r for r, d in dumps.items() if d.num_calls < sequence]
        groups: dict[tuple[Any, ...], list[int]] = {}
        for rank, call in came.items():
            groups.setdefault(signature(call), []).append(rank)
        if len(groups) <= 1 and not absent:
            continue
        finding.call = sequence
        finding.absent = absent
        largest = max(groups.values(), key=len, default=[])
        finding.differing = sorted(r for g in groups.values() if g is not largest for r in g)
        if len(groups) > 1:
            finding.lines.append(f"call {sequence} is the first where the ranks differ:")
        else:
            finding.lines.append(f"call {sequence}: {_ranks(absent)} never came to it")
        for members in groups.values():
            call = came[members[0]]
            states = sorted({came[r]["state"] for r in members})
            finding.lines.append(f"  {_ranks(members)}: {describe(call)}: {', '.join(states)}")
        for rank in absent:
            dump = dumps[rank]
            before = dump.calls.get(dump.num_calls)
            what = f": {describe(before)}: {before['state']}" if before else ""
            finding.lines.append(f"  rank {rank}: its last call is {dump.num_calls}{what}")
        return
    if first > last:
        finding.lines.append(f"the records have no call in common: some end before call {first}")
        finding.call = last
        return
    if finding.no_dump:
        stuck = [r for r, d in dumps.items() if d.calls and d.calls[last]["state"] != "done"]
        if stuck:
            finding.call, finding.absent = last, finding.no_dump
            call = dumps[stuck[0]].calls[last]
            finding.lines.append(
                f"call {last}, {describe(call)}: {_ranks(stuck)} came to it; of "
                f"{_ranks(finding.no_dump)} nothing is known"
            )
            return
    finding.lines.append(f"the {len(dumps)} ranks agree in calls {first} to {last}")
    stuck = [r for r, d in dumps.items() if d.calls and d.calls[last]["state"] in _UNFINISHED]
    if stuck:
        finding.lines.append(f"call {last} is unfinished on {_ranks(stuck)}")


_UNFINISHED = ("running", "enqueued", "failed")


def diagnose(dumps: Iterable[Dump]) -> list[Finding]:
    """One finding per group and device type. Of two dumps of one rank the later one counts."""
    by_group: dict[tuple[str, str, int], dict[int, Dump]] = {}
    for dump in sorted(dumps, key=lambda d: d.time):
        by_group.setdefault((dump.group, dump.device, dump.world_size), {})[dump.rank] = dump
    findings = []
    for (group, device, world_size), of_group in sorted(by_group.items()):
        dumps_of = dict(sorted(of_group.items()))
        missing = [r for r in range(world_size) if r not in dumps_of]
        finding = Finding(group, no_dump=missing)
        finding.lines.append(f"group {group!r}, {device}, {world_size} ranks:")
        if missing:
            finding.lines.append(f"{_ranks(missing)} left no record")
        for rank, dump in dumps_of.items():
            if dump.reason:
                finding.lines.append(f"rank {rank} says: {dump.reason}")
            if dump.awaited is not None:
                finding.lines.append(f"rank {rank} was waiting for rank {dump.awaited}")
        _compare(finding, dumps_of, world_size)
        findings.append(finding)
    return findings


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m llcoll.diagnose", description="Names the first call where ranks differ."
    )
    parser.add_argument("dumps", nargs="+", help="files of llcoll.dump() or of a timeout; folders")
    args = parser.parse_args(argv)
    dumps = []
    status = 0
    for path in expand(args.dumps):
        try:
            dumps.append(read(path))
        except BadDump as error:
            print(error, file=sys.stderr)
            status = 2
    if not dumps:
        print("no flight record among the arguments", file=sys.stderr)
        return 2
    for finding in diagnose(dumps):
        print("\n  ".join(finding.lines))
        if finding.is_fault:
            status = max(status, 1)
    return status


if __name__ == "__main__":
    sys.exit(main())
