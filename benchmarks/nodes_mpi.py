"""Open MPI's rank of benchmarks/nodes.py: `nodes_mpi.py OUT SECONDS`. Needs mpi4py and numpy."""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

SIZES = [128 << (3 * i) for i in range(6)] + [16 << 20]
MIN_ROUNDS, MAX_ROUNDS = 5, 40


def main() -> None:
    out, seconds = Path(sys.argv[1]), float(sys.argv[2])
    world = MPI.COMM_WORLD
    found = {}
    for num_bytes in SIZES:
        x = np.zeros(num_bytes // 4, np.float32)
        times = []
        deadline = time.perf_counter() + seconds / len(SIZES)
        for number in range(MAX_ROUNDS + 2):
            world.Barrier()
            began = time.perf_counter()
            world.Allreduce(MPI.IN_PLACE, x)
            lasted = world.allreduce(time.perf_counter() - began, MPI.MAX)
            if number >= 2:
                times.append(lasted)
            go_on = world.bcast(number < MIN_ROUNDS + 2 or time.perf_counter() < deadline)
            if not go_on:
                break
        found[str(num_bytes)] = 1e6 * statistics.median(times)
    if world.Get_rank() == 0:
        out.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
