"""The launcher works: ranks meet, run at the same time, and one all-reduce is right."""

import os
import sys

import torch
from common import end, ops, parser, start


def main() -> int:
    args = parser(__doc__).parse_args()
    world = start(args)
    x = torch.full((1000,), float(world.rank + 1), device=world.device)
    result = ops.all_reduce(x)
    want = world.size * (world.size + 1) / 2
    if not bool((result == want).all()):
        raise AssertionError(f"rank {world.rank}: {result[:4].tolist()}, not {want}")
    world.say(f"MPS pipe {os.environ.get('CUDA_MPS_PIPE_DIRECTORY')}, all-reduce right")
    return end(world)


if __name__ == "__main__":
    sys.exit(main())
