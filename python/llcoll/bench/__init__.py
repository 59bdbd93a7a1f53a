"""The benchmark suite: `torchrun --nproc-per-node 2 -m llcoll.bench [flags]`.

What the other measuring commands (llcoll.sol, llcoll.tune, benchmarks/) share with it is here too:
where to run (device), a measured group (session), inputs with exact sums (cases), interleaved
timing (timing), the libraries to compare with (contenders, peers).
"""

from .main import main

__all__ = ["main"]
