"""The cost model of docs/scale.md: fitted to what benchmarks/nodes.py wrote, and what it says.

    python benchmarks/nodes_model.py docs/figures/nodes_veth.json

Fitted for two nodes, W ranks in all, n bytes, d the network's delay; a and B for each way:


    leaders    a + d + n / B         one step between nodes; a has the node's two exchanges too
    lanes      a + s d + n / B       s = 1 step, 2 where the engine adds (above 1 MiB)
    flat ring  2 (W - 1) (a + d + n / (W B))   steps of Gloo's ring, each as slow as its slowest hop

What is predicted for GPUs rests on the constants below, which say where they come from.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np


def fit(rows: list[tuple[list[float], float]]) -> np.ndarray:
    """Least squares of relative errors, no coefficient below zero (dropped one by one)."""
    a = np.array([[x / t for x in xs] for xs, t in rows])
    b = np.ones(len(rows))
    keep = list(range(a.shape[1]))
    while True:
        found, *_ = np.linalg.lstsq(a[:, keep], b, rcond=None)
        if (found >= 0).all():
            result = np.zeros(a.shape[1])
            result[keep] = found
            return result
        del keep[int(np.argmin(found))]


def error_of(rows: list[tuple[list[float], float]], x: np.ndarray) -> float:
    """Median relative error."""
    return float(np.median([abs(np.dot(xs, x) - t) / t for xs, t in rows]))


def fitted(data: dict[str, Any]) -> dict[str, float]:
    samples: dict[str, list[tuple[list[float], float]]] = {"leaders": [], "lanes": [], "flat": []}
    for result in data["results"]:
        ranks, d = sum(map(len, result["nodes"])), result["delay_us"]
        for row in result["rows"]:
            n, us = row["bytes"], row["us"]
            if "leaders" in us:
                samples["leaders"].append(([1, n], us["leaders"] - d))
            samples["lanes"].append(([1, n], us["lanes"] - d * (2 if n > 1 << 20 else 1)))
            steps = 2 * (ranks - 1)
            samples["flat"].append(([steps, steps * n / ranks], us["flat"] - steps * d))
    found = {}
    for name, rows in samples.items():
        rows = [(xs, t) for xs, t in rows if t > 0]
        a, b = fit(rows)
        found[f"{name} us"] = a
        found[f"{name} GB/s"] = math.inf if b == 0 else 1e-3 / b
        found[f"{name} error"] = error_of(rows, np.array([a, b]))
    return found


# Assumed, not measured: 8 GPUs a node, 400 Gbit/s for each, NVLink of Hopper; a_x is a step of NCCL
# between nodes. a_n is one LL exchange of 8 ranks, measured with all of them on one GPU.
L, A_N, B_N, A_X, B_X = 8, 4.1, 300e3, 12.0, 8 * 45e3  # us, bytes per us


def leaders(n: float, m: int) -> float:
    inside = 2 * (A_N + n / B_N)
    if m == 1:
        return A_N + n / B_N
    if n * m <= 65536:  # nodes_plan.cpp: kGather
        return inside + math.ceil(math.log2(m)) * A_X + (m - 1) * n / (B_X / L)
    return inside + tree(n, m, B_X / L)


def lanes(n: float, m: int) -> float:
    if m == 1:
        return A_N + n / B_N
    inside = 2 * (A_N + n / L / B_N * (L - 1))
    if n * m <= 65536:
        return inside + math.ceil(math.log2(m)) * A_X + (m - 1) * n / L / (B_X / L)
    return inside + best(n / L, m, B_X / L)


def tree(n: float, m: int, bandwidth: float) -> float:
    return 2 * math.ceil(math.log2(m)) * A_X + 2 * n / bandwidth


def best(n: float, m: int, bandwidth: float) -> float:
    ring = 2 * (m - 1) * (A_X + n / (m * bandwidth))
    return min(ring, tree(n, m, bandwidth))


def flat(n: float, m: int) -> float:
    """Rings or trees over the nodes, a chain inside each: what NCCL builds."""
    chain = 2 * (L - 1) * 1.5  # us: a hop of NVLink in NCCL's LL protocol, assumed
    return chain + 2 * n / B_N + (0 if m == 1 else best(n, m, B_X))


def main() -> None:
    data = json.loads(Path(sys.argv[1]).read_text())
    for name, value in fitted(data).items():
        print(f"{name:14} {value:9.2f}")
    print("\n8-GPU nodes, predicted us: leaders / lanes / flat")
    print("bytes      " + "".join(f"{m:>22} nodes" for m in (1, 2, 16, 128, 1024)))
    for n in (128, 8 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20):
        cells = [
            f"{leaders(n, m):8.0f} /{lanes(n, m):7.0f} /{flat(n, m):7.0f}   "
            for m in (1, 2, 16, 128, 1024)
        ]
        print(f"{n:>10} " + "".join(cells))


if __name__ == "__main__":
    main()
