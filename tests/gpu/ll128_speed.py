"""LL128 against the other two-shot algorithms and torch's: where it is the fastest.

    python -m llcoll.loopback -n 4 tests/gpu/ll128_speed.py [--seconds S] [--dtypes float32]

One table per dtype, us per call in a CUDA graph, medians of interleaved rounds, the slowest rank's.
16-bit types have two LL128 columns: lines in their own precision, and in float32.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from pathlib import Path

import torch
from common import end, ops, parser, start
from speed import KIB, MIB, ROUNDS, Bench, Call, short_size

SIZES = tuple(16 * KIB << k for k in range(11))  # to 16 MiB
OTHERS = ("two_shot_ll", "two_shot_sentinel", "two_shot_flag", "auto")


def candidates(bench: Bench, x: torch.Tensor, native: str, wide: str) -> dict[str, Call]:
    def ours(algorithm: str, group: str = "") -> Call:
        return lambda: ops.all_reduce(x, "sum", group, algorithm=algorithm)

    calls: dict[str, Call] = {"two_shot_ll128": ours("two_shot_ll128", native)}
    if x.dtype != torch.float32:
        calls["two_shot_ll128 wide"] = ours("two_shot_ll128", wide)
    calls.update({algorithm: ours(algorithm) for algorithm in OTHERS})
    theirs = bench.ordinary(x) if bench.has_room_for_torch(x.numel() * x.element_size()) else {}
    calls.update({name: call for name, call in theirs.items() if "two_shot_" in name[5:]})
    return {name: call for name, call in calls.items() if not name.startswith("torch copy+one")}


def table(title: str, rows: list[tuple[int, dict[str, float]]]) -> str:
    names = list(dict.fromkeys(name for _, us in rows for name in us))
    lines = [f"### {title}", f"| size | {' | '.join(names)} | best |"]
    lines.append("|---" * (len(names) + 2) + "|")
    for size, us in rows:
        cells = [f"{us[name]:.2f}" if name in us else "-" for name in names]
        best = min((n for n in us if n != "auto"), key=us.__getitem__)
        lines.append(f"| {short_size(size)} | {' | '.join(cells)} | {best} |")
    return "\n".join(lines)


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    arguments.add_argument("--rounds", type=int, default=ROUNDS)
    arguments.add_argument("--seconds", type=float, default=45, help="no new size after these")
    world = start(arguments.parse_args())
    bench = Bench(world)
    native = world.group(allow_low_precision=True).group_name
    wide = world.group(allow_low_precision=False).group_name
    deadline = time.monotonic() + world.args.seconds
    text = []
    for dtype in world.args.dtypes:
        rows = []
        for size in SIZES:
            if bench.slowest([float(time.monotonic() > deadline)])[0]:
                world.say(f"out of time: {dtype} ends before {short_size(size)}")
                break
            kind = getattr(torch, dtype)
            x, want = bench.inputs(size // kind.itemsize, kind)
            torch.cuda.synchronize()  # the calls run on another stream than their input
            times = bench.measure(candidates(bench, x, native, wide), want)
            rows.append((size, {name: statistics.median(us) for name, us in times.items()}))
        if rows:
            text.append(table(f"{world.size} ranks, {dtype}, us", rows))
            world.say(text[-1])
    if world.rank == 0 and os.environ.get("OUT"):
        Path(os.environ["OUT"], f"ll128_{world.size}.md").write_text("\n\n".join(text) + "\n")
    return end(world)


assert SIZES[-1] == 16 * MIB

if __name__ == "__main__":
    sys.exit(main())
