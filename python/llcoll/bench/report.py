"""Tables, JSON and CSV of measured rows."""

from __future__ import annotations

import csv
import datetime
import json
import platform
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import llcoll

from .session import Session
from .timing import Figure, Regret, Row, geometric_mean, lower_bound

KIB, MIB = 1 << 10, 1 << 20
HEAD = """\
#                                                 out-of-place                    in-place\
              |  out-of-place  |    in-place    |
#      size       count     type  redop     time  algbw  busbw #wrong     time  algbw  busbw #wrong\
 |    p50     p99 |    p50     p99 | contender
#       (B)  (elements)                     (us) (GB/s) (GB/s)            (us) (GB/s) (GB/s)       \
 |   (us)    (us) |   (us)    (us) |"""


def short_size(num_bytes: int) -> str:
    if num_bytes >= MIB and num_bytes % MIB == 0:
        return f"{num_bytes // MIB} MiB"
    return (
        f"{num_bytes // KIB} KiB" if num_bytes >= KIB and num_bytes % KIB == 0 else f"{num_bytes} B"
    )


def bandwidths(num_bytes: int, us: float, world_size: int) -> tuple[float, float]:
    """GB/s: bytes over time, and times 2 (N - 1) / N, as nccl-tests define them."""
    algbw = num_bytes / us / 1e3
    return algbw, algbw * 2 * (world_size - 1) / world_size


def table_row(row: Row, datatype: str, op: str, world_size: int) -> str:
    text = f"{row.num_bytes:>11} {row.numel:>11} {datatype:>8} {op:>6}"
    tail = ""
    for in_place in (False, True):
        figure = row.figure(in_place)
        if figure is None or not figure.rounds:
            wrong = "-" if figure is None or figure.wrong < 0 else str(figure.wrong)
            text += f" {'-':>8} {'-':>6} {'-':>6} {wrong:>6}"
            tail += f" | {'-':>6} {'-':>7}"
            continue
        algbw, busbw = bandwidths(row.num_bytes, figure.us, world_size)
        wrong = str(figure.wrong) if figure.wrong >= 0 else "N/A"
        text += f" {figure.us:>8.2f} {algbw:>6.2f} {busbw:>6.2f} {wrong:>6}"
        tail += f" | {figure.p50:>6.2f} {figure.p99:>7.2f}"
    name = row.contender + (f" ({row.ran})" if row.ran and row.ran != row.contender else "")
    return f"{text}{tail} | {name}{': ' + row.why if row.why else ''}"


def average_busbw(rows: Sequence[Row], world_size: int) -> float:
    """Of llcoll's own figures, as nccl-tests' footer has it."""
    every = [
        bandwidths(row.num_bytes, figure.us, world_size)[1]
        for row in rows
        if not row.is_peer
        for figure in row.figures
        if figure.rounds
    ]
    return statistics.fmean(every) if every else 0.0


def num_wrong(rows: Sequence[Row]) -> int:
    return sum(max(figure.wrong, 0) for row in rows for figure in row.figures)


def comparisons(rows: Sequence[Row], small: int = 64 * KIB) -> dict[str, dict[str, Any]]:
    """Per peer (the best of its variants: what comes before a `-`), llcoll's first contender
    against it: times faster as a geometric mean up to 64 KiB and over all sizes, and the least
    lower 95% bound of a paired median."""
    by_size: dict[int, list[Row]] = {}
    for row in rows:
        by_size.setdefault(row.num_bytes, []).append(row)
    families = {row.contender.partition("-")[0] for row in rows if row.is_peer}
    result: dict[str, dict[str, Any]] = {}
    for family in sorted(families):
        ratios: list[tuple[int, float, float]] = []
        for num_bytes, here in by_size.items():
            own = next((row.best for row in here if not row.is_peer and row.best), None)
            theirs = [
                row.best
                for row in here
                if row.is_peer and row.contender.partition("-")[0] == family and row.best
            ]
            if own is None or not theirs:
                continue
            peer = min(theirs, key=lambda figure: figure.us)
            paired = [a / b for a, b in zip(peer.rounds, own.rounds, strict=False)]
            ratios.append((num_bytes, statistics.median(paired), lower_bound(paired)))
        if not ratios:
            continue
        least = min(ratios, key=lambda ratio: ratio[2])
        result[family] = {
            "up_to_64_KiB": geometric_mean([r[1] for r in ratios if r[0] <= small]),
            "all_sizes": geometric_mean([r[1] for r in ratios]),
            "least_lower_bound": least[2],
            "least_at_bytes": least[0],
            "ratios": {str(num_bytes): median for num_bytes, median, _ in ratios},
        }
    return result


def regret_summary(found: Sequence[Regret]) -> dict[str, Any]:
    if not found:
        return {}
    worst = max(found, key=lambda one: one.ratio)
    return {
        "geometric_mean": geometric_mean([one.ratio for one in found]),
        "worst": asdict(worst),
        "each": [asdict(one) for one in found],
    }


def about(session: Session) -> dict[str, Any]:
    """Machine, versions and date: what a figure is worth nothing without."""
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": asdict(session.machine.key),
        "kernel": platform.release(),
        "where": session.words,
        "torch": torch.__version__,
        "llcoll": llcoll.__version__,
        "policy": session.communicator.settings.policy,
        "table": {
            "source": session.communicator.table.source,
            "hash": session.communicator.table.hash,
        },
    }


def _figure_data(row: Row, figure: Figure, world_size: int) -> dict[str, Any]:
    data: dict[str, Any] = {"wrong": figure.wrong}
    if figure.rounds:
        algbw, busbw = bandwidths(row.num_bytes, figure.us, world_size)
        data |= {
            "us": figure.us,
            "mean": statistics.fmean(figure.rounds),
            "deviation": statistics.pstdev(figure.rounds),
            "p50": figure.p50,
            "p99": figure.p99,
            "algbw": algbw,
            "busbw": busbw,
            "rounds": figure.rounds,
        }
    return data


def row_data(row: Row, world_size: int) -> dict[str, Any]:
    data: dict[str, Any] = {
        "contender": row.contender,
        "peer": row.is_peer,
        "bytes": row.num_bytes,
        "count": row.numel,
        "ran": row.ran,
        "why": row.why,
    }
    for in_place, name in ((False, "out_of_place"), (True, "in_place")):
        figure = row.figure(in_place)
        data[name] = None if figure is None else _figure_data(row, figure, world_size)
    return data


def write_json(path: Path, data: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"version": 1, **data}, indent=1) + "\n", encoding="utf-8")


def write_csv(path: Path, rows: Sequence[Row], world_size: int) -> None:
    columns = ["us", "mean", "deviation", "p50", "p99", "algbw", "busbw", "wrong"]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["contender", "ran", "bytes", "count", "form", *columns])
        for row in rows:
            data = row_data(row, world_size)
            for form in ("out_of_place", "in_place"):
                figure = data[form]
                if figure is not None:
                    cells = [figure.get(column, "") for column in columns]
                    writer.writerow(
                        [row.contender, row.ran, row.num_bytes, row.numel, form, *cells]
                    )


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines) + "\n"
