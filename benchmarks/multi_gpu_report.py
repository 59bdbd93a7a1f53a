"""What benchmarks/multi_gpu.sh found, as one JSON file and one page: multi_gpu_report.py DIRECTORY.

Reads the directory's parts.tsv, the JSON files of llcoll.sol, llcoll.bench and llcoll.model, and
tuning.json; writes multi_gpu.json and multi_gpu.md beside them. What was not run is left out.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from llcoll.bench.report import markdown_table, short_size, write_json

KINDS = {
    "graph": "bfloat16, CUDA graphs",
    "eager": "bfloat16, eager calls",
    "float32": "float32, CUDA graphs",
    "regret": "bfloat16, CUDA graphs, with the tuned table",
}


def read_parts(path: Path) -> list[dict[str, Any]]:
    """The last outcome of each part."""
    found: dict[str, dict[str, Any]] = {}
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            name, state, seconds, note = line.split("\t", 3)
            found[name] = {"name": name, "state": state, "seconds": int(seconds), "note": note}
    return list(found.values())


def read_runs(directory: Path, kind: str) -> dict[int, dict[str, Any]]:
    """By number of ranks."""
    found = {}
    for path in directory.glob(f"{kind}_*.json"):
        ranks = path.stem.removeprefix(f"{kind}_")
        if ranks.isdigit():
            found[int(ranks)] = json.loads(path.read_text(encoding="utf-8"))
    return dict(sorted(found.items()))


def best_us(row: dict[str, Any]) -> float | None:
    """The faster form."""
    times = [form["us"] for form in (row["out_of_place"], row["in_place"]) if form and "us" in form]
    return min(times, default=None)


def latency_table(run: dict[str, Any]) -> str:
    """us by size; what auto ran, and how many times faster than the fastest peer it was."""
    names = list(dict.fromkeys(row["contender"] for row in run["rows"] if best_us(row)))
    peers = {row["contender"] for row in run["rows"] if row["peer"]}
    by_size: dict[int, dict[str, Any]] = {}
    for row in run["rows"]:
        by_size.setdefault(row["bytes"], {})[row["contender"]] = row
    lines = []
    for num_bytes, here in sorted(by_size.items()):
        us = {name: best_us(here[name]) for name in names if name in here}
        cells = [f"{us[name]:.2f}" if us.get(name) else "-" for name in names]
        theirs = [value for name, value in us.items() if name in peers and value]
        own = us.get("auto")
        ratio = f"{min(theirs) / own:.2f}" if theirs and own else "-"
        ran = here["auto"]["ran"] if "auto" in here else "-"
        lines.append([short_size(num_bytes), *cells, ran, ratio])
    return markdown_table(["size", *names, "auto ran", "best peer / auto"], lines)


def footer(run: dict[str, Any]) -> str:
    lines = [
        f"- against {peer}: {figures['up_to_64_KiB']:.2f} times faster up to 64 KiB, "
        f"{figures['all_sizes']:.2f} over all sizes; least lower bound "
        f"{figures['least_lower_bound']:.2f} at {short_size(figures['least_at_bytes'])}"
        for peer, figures in run["peers"].items()
    ]
    if run["regret"]:
        lines.append(f"- auto's regret: {run['regret']['geometric_mean']:.3f}")
    lines += [f"- missing: {name}: {why}" for name, why in run["about"]["missing"].items()]
    if run["wrong"]:
        lines.append(f"- WRONG RESULTS: {run['wrong']} elements")
    return "\n".join(lines) + "\n"


def default_rows(entry: dict[str, Any]) -> str:
    """An entry's rows of the fast policy in the words of csrc/default_tables.cpp."""
    parts = []
    for name, rows in entry["rows"]["fast"].items():
        words = [f"{'*' if size is None else size} {algorithm}" for size, algorithm in rows]
        parts.append(f'"{name}: {", ".join(words)}')
    return ';"\n'.join(parts) + '"'


def sol_table(runs: dict[int, dict[str, Any]]) -> str:
    lines = []
    for ranks, run in runs.items():
        light = run["speed_of_light"]
        parts = ", ".join(f"{name} {ns:.0f} ns" for name, ns in light["parts_ns"].items())
        fastest = min(run["at_128_bytes"], key=lambda one: one["us"], default=None)
        words = "-"
        if fastest:
            words = (
                f"{fastest['us']:.2f} us = {fastest['ratio']:.2f} x ({fastest['algorithm']}, "
                f"{fastest['mode']})"
            )
        lines.append([str(ranks), f"{light['bound_us'] * 1e3:.0f} ns", parts, words])
    return markdown_table(["ranks", "bound", "of which", "fastest at 128 B"], lines)


def page(data: dict[str, Any]) -> str:
    """`data` as in multi_gpu.json."""
    first = next((run for runs in data["runs"].values() for run in runs.values()), None)
    text = "# llcoll, one machine, several GPUs\n\n"
    if first:
        about = first["about"]
        text += (
            f"{about['where']}; driver {about['machine']['driver']}, torch {about['torch']}, "
            f"llcoll {about['llcoll']}, {about['date']}. Medians in us per call, the slowest "
            "rank's, the faster of in place and out of place. NVLink multicast off.\n\n"
        )
    rows = [[p["name"], p["state"], str(p["seconds"]), p["note"]] for p in data["parts"]]
    text += "## Parts\n\n" + markdown_table(["part", "", "s", ""], rows) + "\n"
    if data["sol"]:
        text += "## Speed of light\n\n" + sol_table(data["sol"]) + "\n"
    for kind, runs in data["runs"].items():
        for ranks, run in runs.items():
            text += f"## {ranks} ranks, {KINDS[kind]}\n\nBackend: {run['about']['where']}.\n\n"
            text += latency_table(run) + "\n" + footer(run) + "\n"
    if data["tuned"]:
        text += "## Tuned rows, as csrc/default_tables.cpp has them\n\n"
    for entry in data["tuned"]:
        key = entry["key"]
        text += f"{key['device']}, {key['world_size']} ranks, {key['topology']}:\n\n"
        text += f"```\n{default_rows(entry)}\n```\n\n"
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    directory = parser.parse_args().directory
    table = directory / "tuning.json"
    tuned = json.loads(table.read_text(encoding="utf-8"))["entries"] if table.exists() else []
    data = {
        "parts": read_parts(directory / "parts.tsv"),
        "sol": read_runs(directory, "sol"),
        "runs": {kind: read_runs(directory, kind) for kind in KINDS},
        "model": read_runs(directory, "model"),
        "tuned": tuned,
    }
    write_json(directory / "multi_gpu.json", data)
    target = directory / "multi_gpu.md"
    target.write_text(page(data), encoding="utf-8")
    print(f"{target}\n\n{page(data)}")


if __name__ == "__main__":
    main()
