"""Tables and the picture of nccl_front.py's results (figure 14)."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

SIDES = ("alone", "front")
COLLECTIVES = ("all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter")
SAME_EIGENVALUES = 1e-11  # between the two sides, of the largest


def find(results: list[dict[str, Any]], name: str, side: str, kind: str) -> dict[str, Any]:
    for one in results:
        if (one["name"], one["side"], one["kind"]) == (name, side, kind):
            return one
    return {}


def report_tests(data: dict[str, Any]) -> list[str]:
    results = data["results"]
    lines = [f"### nccl-tests, {data['ranks']} ranks", ""]
    checks = [one for one in results if one["kind"] == "check"]
    for side in SIDES:
        own = [one for one in checks if one["side"] == side]
        wrong = sum(one["wrong"] for one in own)
        bad = [one["name"] for one in own if one["status"] != 0 or one["wrong"]]
        taken, calls = (sum(one.get(k, 0) for one in own) for k in ("taken", "calls"))
        share = f", {taken} of {calls} calls by llcoll" if calls else ""
        word = "with the front" if side == "front" else "NCCL alone"
        lines.append(
            f"- checked, {word}: {len(own)} programs, {sum(one['checked'] for one in own)} "
            f"results, {wrong} rows wrong{share}" + (f"; failed: {', '.join(bad)}" if bad else "")
        )
    for kind, title in (("graph_us", "in a CUDA graph"), ("host_us", "host's time of a call")):
        columns = [
            c for c in COLLECTIVES if all(find(results, c, s, kind).get("rows") for s in SIDES)
        ]
        if not columns:
            continue
        lines += ["", f"us, {title} (out of place): NCCL alone / front", ""]
        lines += ["| bytes | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
        sides = {
            c: [{r["bytes"]: r["us"] for r in find(results, c, s, kind)["rows"]} for s in SIDES]
            for c in columns
        }
        for num_bytes in sorted(set().union(*(one for pair in sides.values() for one in pair))):
            cells = []
            for collective in columns:
                alone, front = (one.get(num_bytes) for one in sides[collective])
                cells.append(
                    f"{alone:.2f} / {front:.2f}" if alone is not None and front is not None else ""
                )
            lines.append(f"| {num_bytes} | " + " | ".join(cells) + " |")
    return [*lines, ""]


def solves_of(data: dict[str, Any], side: str) -> list[dict[str, Any]]:
    """A side's results of all rounds together, by routine and size."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for program in data["results"]:
        if (program["name"], program["side"], program["kind"]) != ("cusolver_mp", side, "solve"):
            continue
        for one in program.get("written", []):
            row = found.setdefault((one["routine"], one["n"]), {**one, "ms": [], "one_gpu_ms": []})
            row["ms"] = row["ms"] + one["ms"]
            row["one_gpu_ms"] = row["one_gpu_ms"] + one["one_gpu_ms"]
            for worst in ("error", "residual"):
                row[worst] = max(row[worst], one[worst])
    return list(found.values())


def compare_solves(data: dict[str, Any]) -> list[dict[str, Any]]:
    """Of each routine and size: the sides' median ms, and how far the eigenvalues are apart.

    "free": without communication; "pairs": the front without Send and Recv. None where not run.
    """
    sides = {side: solves_of(data, side) for side in (*SIDES, "free", "free pairs")}
    rows = []
    for alone in sides["alone"]:
        key = (alone["routine"], alone["n"])
        same = {
            side: next((one for one in all_of if (one["routine"], one["n"]) == key), None)
            for side, all_of in sides.items()
        }
        front = same["front"]
        if front is None:
            continue
        largest = max(map(abs, alone["values"]))
        apart = max(abs(a - b) for a, b in zip(alone["values"], front["values"], strict=True))
        row = {"routine": alone["routine"], "n": alone["n"], "apart": apart / largest}
        for name, side in (
            *zip(SIDES, SIDES, strict=True),
            ("free", "free"),
            ("pairs", "free pairs"),
        ):
            one = same[side]
            row[name] = None if one is None else statistics.median(one["ms"])
        row["one_gpu"] = statistics.median(alone["one_gpu_ms"] + front["one_gpu_ms"])
        row["error"] = max(front["error"], front["residual"])
        rows.append(row)
    return rows


def report_cusolver(data: dict[str, Any]) -> list[str]:
    front = find(data["results"], "cusolver_mp", "front", "solve")
    share = ""
    if front.get("calls"):
        percent = 100 * front["taken"] / front["calls"]
        share = f"; {front['taken']} of {front['calls']} calls by llcoll ({percent:.1f} %)"
    lines = [f"### cuSOLVERMp, {data['ranks']} ranks, float64, nb 64{share}", ""]
    lines += [
        "| routine | n | NCCL alone ms | front ms | faster | one GPU ms | error, front | apart "
        "| no communication ms | the most possible | front without Send/Recv ms |",
        "|---" * 11 + "|",
    ]
    for r in compare_solves(data):
        times = f"{r['alone']:.2f} | {r['front']:.2f} | {r['alone'] / r['front']:.2f}"
        errors = f"{r['one_gpu']:.2f} | {r['error']:.1g} | {r['apart']:.1g}"
        free = " | " if r["free"] is None else f"{r['free']:.2f} | {r['alone'] / r['free']:.2f}"
        pairs = "" if r["pairs"] is None else f"{r['pairs']:.2f}"
        lines.append(f"| {r['routine']} | {r['n']} | {times} | {errors} | {free} | {pairs} |")
    return [*lines, ""]


def report_calls(data: dict[str, Any]) -> list[str]:
    """us of a step of nccl_calls, and of the host for issuing it."""
    programs = [one for one in data["results"] if one.get("written")]
    titles = [f"{one['name'].partition(', ')[2] or one['side']}" for one in programs]
    lines = [
        f"### Calls among a program's kernels, {data['ranks']} ranks, float64: us a step (host)",
        "",
    ]
    lines += ["| n | step | " + " | ".join(titles) + " |", "|---" * (len(titles) + 2) + "|"]
    for rows in zip(*(one["written"] for one in programs), strict=True):
        cells = [f"{row['us']:.1f} ({row['host_us']:.1f})" for row in rows]
        lines.append(f"| {rows[0]['n']} | {rows[0]['step']} | " + " | ".join(cells) + " |")
    return [*lines, ""]


def plot(data: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = compare_solves(data)
    routines = [name for name in ("syevd", "potrf") if any(r["routine"] == name for r in rows)]
    figure, axes = pyplot.subplots(
        1, len(routines), figsize=(4.5 * len(routines), 3.5), squeeze=False
    )
    for axis, routine in zip(axes[0], routines, strict=True):
        own = [r for r in rows if r["routine"] == routine]
        bars = [("alone", "NCCL alone", "C0"), ("front", "with llcoll", "C1")]
        if all(r["free"] is not None for r in own):
            bars.append(("free", "no communication at all", "C3"))
        bars.append(("one_gpu", "one GPU (cuSOLVER)", "C2"))
        width = 0.8 / len(bars)
        for i, (key, label, color) in enumerate(bars):
            places = [j + width * (i - (len(bars) - 1) / 2) for j in range(len(own))]
            heights = [r[key] for r in own]
            axis.bar(places, heights, 0.93 * width, label=label, color=color)
        axis.set_xticks(range(len(own)), [str(r["n"]) for r in own])
        axis.set(title=f"{routine}, {data['ranks']} ranks", xlabel="n", ylabel="ms", yscale="log")
    axes[0][0].legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


REPORTS = {
    "tests": report_tests,
    "taken": report_tests,
    "cusolver": report_cusolver,
    "calls": report_calls,
}


def report(paths: list[Path], plot_path: Path | None) -> bool:
    is_right = True
    for path in paths:
        data = json.loads(path.read_text())
        print("\n".join(REPORTS[data["part"]](data)))
        if data["part"] != "cusolver":
            continue
        rows = compare_solves(data)
        is_right &= bool(rows) and all(row["apart"] <= SAME_EIGENVALUES for row in rows)
        if plot_path is not None and rows:
            plot(data, plot_path)
    return is_right
