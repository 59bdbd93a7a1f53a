"""Medians, paired ratios, goals and Markdown of cpu_peers.py's records.

A record is one block: {"round", "dtype", "bytes", "contender", "us", "median", "best", "ping_ns",
"state", "slowed", "waited", "work_ns"}; us is the chosen one of median and best. Ratios are
paired: both figures come from one round and one state of the cores.
"""

from __future__ import annotations

import math
import random
import statistics
from dataclasses import dataclass
from typing import Any

Record = dict[str, Any]
STATES = ("near", "far")
MIN_PAIRS = 3
# A core on which fixed work takes this much longer than at best shares its caches with a stranger.
SLOWED = 1.4


@dataclass(frozen=True)
class Ratio:
    """How many times faster than the peer, in one cell (type and size)."""

    dtype: str
    num_bytes: int
    median: float
    low: float  # lower end of the 95% interval of the median (bootstrap)
    num_pairs: int


@dataclass(frozen=True)
class Goal:
    text: str
    contender: str
    peer: str
    state: str | None  # None: near and far
    smallest: int
    largest: int
    target: float
    how: str  # "each": every cell's median; "mean": geometric mean; "bound": every lower bound


KIB, MIB = 1 << 10, 1 << 20
GOALS_TWO_RANKS = [
    Goal("2x vLLM up to 4 KiB, near", "llcoll", "vllm", "near", 0, 4 * KIB, 2.0, "each"),
    Goal("1.5x vLLM up to 4 KiB, far", "llcoll", "vllm", "far", 0, 4 * KIB, 1.5, "each"),
    Goal("1.4x vLLM over all sizes, near", "llcoll", "vllm", "near", 0, 1 << 40, 1.4, "mean"),
    Goal("vLLM at most 10% faster, far", "llcoll", "vllm", "far", 0, 1 << 40, 1 / 1.1, "each"),
    Goal("1.5x Open MPI, 1 KiB-4 MiB", "llcoll", "openmpi", None, KIB, 4 * MIB, 1.5, "mean"),
    Goal(
        "Open MPI at most 20% faster, 8-128 B", "llcoll", "openmpi", None, 0, 128, 1 / 1.2, "each"
    ),
    Goal("60x Gloo, 8 B-64 KiB", "llcoll", "gloo", None, 0, 64 * KIB, 60.0, "mean"),
    Goal("plan 2.5x Open MPI up to 128 B", "llcoll_plan", "openmpi", None, 0, 128, 2.5, "each"),
]
GOALS_MORE_RANKS = [
    Goal("never slower than Open MPI", "llcoll", "openmpi", None, 0, 1 << 40, 0.97, "bound"),
]


def mark_slowed(records: list[Record]) -> None:
    """Sets "slowed", against the best of all jobs: give the peers the same version of Python."""
    best = min((record["work_ns"] for record in records), default=0.0)
    for record in records:
        record["slowed"] = record["work_ns"] > SLOWED * best


def geometric_mean(values: list[float]) -> float:
    return math.exp(statistics.fmean(math.log(value) for value in values))


def size_name(num_bytes: int) -> str:
    for unit, name in ((MIB, "MiB"), (KIB, "KiB")):
        if num_bytes >= unit and num_bytes % unit == 0:
            return f"{num_bytes // unit} {name}"
    return f"{num_bytes} B"


def low_bound(values: list[float]) -> float:
    draw = random.Random(1)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(400))
    return medians[9]


def paired_ratios(
    records: list[Record], contender: str, peer: str, state: str | None
) -> list[Ratio]:
    cells: dict[tuple[str, int], dict[Any, dict[str, float]]] = {}
    for record in records:
        if record["contender"] in (contender, peer) and record["state"] in (
            STATES if state is None else (state,)
        ):
            cell = cells.setdefault((record["dtype"], record["bytes"]), {})
            moment = (record["round"], record["state"], record["slowed"])
            pair = cell.setdefault(moment, {})
            pair[record["contender"]] = record["us"]
    ratios = []
    for (dtype, num_bytes), cell in sorted(cells.items()):
        values = [pair[peer] / pair[contender] for pair in cell.values() if len(pair) == 2]
        if len(values) >= MIN_PAIRS:
            median = statistics.median(values)
            ratios.append(Ratio(dtype, num_bytes, median, low_bound(values), len(values)))
    return ratios


def judge(goal: Goal, records: list[Record]) -> dict[str, Any]:
    ratios = [
        ratio
        for ratio in paired_ratios(records, goal.contender, goal.peer, goal.state)
        if goal.smallest <= ratio.num_bytes <= goal.largest
    ]
    result: dict[str, Any] = {"goal": goal.text, "target": goal.target, "how": goal.how}
    if not ratios:
        return {**result, "value": None, "met": None, "worst": None}
    figures = [ratio.low if goal.how == "bound" else ratio.median for ratio in ratios]
    worst = ratios[figures.index(min(figures))]
    value = geometric_mean(figures) if goal.how == "mean" else min(figures)
    return {
        **result,
        "value": value,
        "met": value >= goal.target,
        "worst": f"{min(figures):.2f} at {size_name(worst.num_bytes)} {worst.dtype}",
    }


def goals(records: list[Record], num_ranks: int) -> list[dict[str, Any]]:
    wanted = GOALS_TWO_RANKS if num_ranks == 2 else GOALS_MORE_RANKS
    return [judge(goal, records) for goal in wanted]


def cell_text(records: list[Record]) -> str:
    if not records:
        return ""
    us = statistics.median(record["us"] for record in records)
    return f"{us:.2f}" if us < 100 else f"{us:.0f}"


def time_table(
    records: list[Record], dtype: str, state: str, slowed: bool, contenders: list[str]
) -> list[list[str]]:
    """Rows of text: size, ping-pong, then one median per contender. Empty where nothing ran."""
    rows = []
    for num_bytes in sorted({record["bytes"] for record in records}):
        here = [
            record
            for record in records
            if (record["bytes"], record["dtype"]) == (num_bytes, dtype)
            and (record["state"], record["slowed"]) == (state, slowed)
        ]
        if not here:
            continue
        ping = statistics.median(record["ping_ns"] for record in here)
        cells = [
            cell_text([record for record in here if record["contender"] == contender])
            for contender in contenders
        ]
        rows.append([size_name(num_bytes), f"{ping:.0f}", *cells])
    return rows


def time_tables(
    records: list[Record], dtype: str, contenders: list[str]
) -> list[tuple[str, list[list[str]]]]:
    """Every state of the cores in which something ran: its words and its rows."""
    tables = []
    for state in STATES:
        for slowed in (False, True):
            rows = time_table(records, dtype, state, slowed, contenders)
            if rows:
                tables.append((f"{dtype}, {state}{', slowed' if slowed else ''}", rows))
    return tables


def ratio_rows(records: list[Record], peers: list[str], contender: str) -> list[list[str]]:
    """Geometric means over all sizes and types, per peer: near, far, all."""
    rows = []
    for peer in peers:
        row = [f"{contender} / {peer}"]
        for state in (*STATES, None):
            ratios = [r.median for r in paired_ratios(records, contender, peer, state)]
            row.append(f"{geometric_mean(ratios):.2f}" if ratios else "")
        rows.append(row)
    return rows


def goal_rows(judged: list[dict[str, Any]]) -> list[list[str]]:
    words = {True: "yes", False: "NO", None: "no data"}
    return [
        [
            goal["goal"],
            f"{goal['target']:.2f} ({goal['how']})",
            "" if goal["value"] is None else f"{goal['value']:.2f}",
            goal["worst"] or "",
            words[goal["met"]],
        ]
        for goal in judged
    ]


GOAL_HEAD = ["goal", "target", "measured", "worst cell", "met"]


def markdown_table(head: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def markdown(result: dict[str, Any]) -> str:
    records, about = result["records"], result["about"]
    contenders = result["contenders"]
    ours = [name for name in contenders if name.startswith("llcoll")]
    peers = [name for name in contenders if name not in ours]
    text = [
        f"## CPU, {about['ranks']} ranks on CPUs {about['cpus']}: {about['date']}\n",
        f"{about['cpu']}, Linux {about['kernel']}. "
        + ", ".join(f"{name}: {version}" for name, version in sorted(about["versions"].items()))
        + f". llcoll commit {about['commit']}.\n",
        f"Microseconds per in-place all-reduce: {about['statistic']} of a block's batches, median "
        f"over {about['rounds']} interleaved rounds. "
        f"near: a cache line moves between the CPUs in under {about['near_below_ns']:.0f} ns one "
        f"way; far: longer; slowed: fixed work on a core took over {SLOWED} times its best. "
        f"Blocks in each state: {about['states']}. Blocks in which a rank waited over 5% of the "
        f"time for a core (expected with more ranks than CPUs): {about['disturbed']:.0%}. MPI has "
        "no bfloat16 and sums uint16 instead.\n",
    ]
    text += [f"Skipped: {name}: {why}.\n" for name, why in about["skipped"].items()]
    for dtype in sorted({record["dtype"] for record in records}):
        for words, rows in time_tables(records, dtype, contenders):
            head = ["size", "ping-pong ns", *contenders]
            text += [f"### {words}\n", markdown_table(head, rows)]
    if ours and peers:
        text.append("### Times faster (geometric mean of paired medians over sizes and types)\n")
        rows = [row for contender in ours for row in ratio_rows(records, peers, contender)]
        text.append(markdown_table(["pair", "near", "far", "all"], rows))
        text += ["### Goals\n", markdown_table(GOAL_HEAD, goal_rows(result["goals"]))]
    return "\n".join(text)
