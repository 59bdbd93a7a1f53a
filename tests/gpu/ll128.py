"""Two-shot LL128 on GPUs: exact sums, its error bound elsewhere, the same bits on every rank.

python -m llcoll.loopback -n 4 tests/gpu/ll128.py [--calls N] [parts...]
"""

from __future__ import annotations

import random
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from common import Checks, World, WrongBits, ops, parser, run_parts, start
from torch_reference import bits

import llcoll

ALGORITHM = "two_shot_ll128"
SIZES = (1, 2, 3, 7, 8, 9, 31, 32, 33, 63, 64, 65, 495, 496, 497, 1024, 3968, 3969, 8191, 8195)
LARGE = (65537, (1 << 20) + 17, 4_000_037)
DTYPES = ("float32", "bfloat16", "float16")
# Unit roundoff of the format that adds, and of the one that is returned.
ROUNDOFF = {"float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}


def names(world: World) -> dict[bool, str]:
    """Groups whose 16-bit lines add in float32 (False) and in their own precision (True)."""
    if not hasattr(world, "line_groups"):
        world.line_groups = {  # type: ignore[attr-defined]
            low: world.group(allow_low_precision=low).group_name for low in (False, True)
        }
    groups: dict[bool, str] = world.line_groups  # type: ignore[attr-defined]
    return groups


def exact_inputs(world: World, numel: int, dtype: torch.dtype, seed: int) -> list[torch.Tensor]:
    idx = torch.arange(numel, device=world.device)
    return [((idx * (7 + seed) + rank * 5 + seed) % 13 - 6).to(dtype) for rank in range(world.size)]


def sums(world: World) -> str:
    """Small integers, every size, in place and out of place, aligned or not."""
    checks = Checks(world)
    rng = random.Random(world.rank)
    for low, group in names(world).items():
        for dtype in DTYPES:
            for idx, numel in enumerate((*SIZES, *LARGE)):
                inputs = exact_inputs(world, numel, getattr(torch, dtype), idx)
                want = bits(sum(x.float() for x in inputs).to(inputs[0].dtype))
                own = inputs[world.rank]
                shift = rng.choice((0, 0, 1, 3))
                base = torch.zeros(numel + 8, dtype=own.dtype, device=world.device)
                view = base[shift : shift + numel]
                view.copy_(own)
                label = f"{dtype} {numel} low={low}"
                checks.compare(ops.all_reduce(view, "sum", group, algorithm=ALGORITHM), want, label)
                ops.all_reduce_(view, "sum", group, algorithm=ALGORITHM)
                checks.compare(view, want, f"{label} in place")
    return checks.finish()


def mixed(world: World) -> str:
    """Random calls back to back, with late ranks, other algorithms and formats in between."""
    shared = random.Random(5)
    own = random.Random(1000 + world.rank)
    checks = Checks(world)
    groups = names(world)
    pools = {dtype: exact_inputs(world, 200_000, getattr(torch, dtype), 3) for dtype in DTYPES}
    wants = {d: bits(sum(x.float() for x in pools[d]).to(pools[d][0].dtype)) for d in DTYPES}
    for call in range(world.args.calls):
        dtype = shared.choice(DTYPES)
        low = shared.random() < 0.5
        numel = shared.randint(1, shared.choice((64, 1000, 9000, 200_000)))
        offset = shared.randint(0, 200_000 - numel)
        algorithm = ALGORITHM if shared.random() < 0.8 else "two_shot_sentinel"
        late = own.random()
        if late < 0.01:
            world.delay(own.uniform(0.1, 3))
        elif late < 0.015:
            time.sleep(own.uniform(0.0005, 0.003))
        x = pools[dtype][world.rank][offset : offset + numel]
        got = ops.all_reduce(x, "sum", groups[low], algorithm=algorithm)
        label = f"call {call} {algorithm} {dtype} [{offset}:+{numel}] low={low}"
        checks.compare(got, wants[dtype][offset : offset + numel], label)
    return checks.finish()


def specials(world: World) -> str:
    """NaN, infinities, zeros and what could pass for a count, in every position of a line."""
    values = torch.tensor(
        [float("nan"), float("inf"), float("-inf"), 0.0, -0.0, 1.0, 2.0, 3.0, world.size, 0.5, 32.0]
    )
    groups = names(world)
    numel = 5000
    for low, group in groups.items():
        for dtype in DTYPES:
            for shift in range(len(values)):
                idx = torch.arange(numel)
                inputs = [
                    values[(idx // (r + 1) + shift + r) % len(values)].to(
                        world.device, getattr(torch, dtype)
                    )
                    for r in range(world.size)
                ]
                got = ops.all_reduce(inputs[world.rank], "sum", group, algorithm=ALGORITHM)
                want = sum(x.double() for x in inputs)
                nan = torch.isnan(want)
                if not torch.equal(torch.isnan(got), nan):
                    raise WrongBits(f"{dtype} low={low}: NaNs differ")
                # Halves up to 33 * 8 need more than bfloat16 has: half an ulp of the largest sum.
                slack = 0 if dtype == "float32" else 33 * world.size * 2 * ROUNDOFF[dtype]
                finite = ~(nan | torch.isinf(want))
                if not torch.equal(got[torch.isinf(want)].double(), want[torch.isinf(want)]):
                    raise WrongBits(f"{dtype} low={low}: infinities differ")
                if ((got.double() - want).abs()[finite] > slack).any():
                    raise WrongBits(f"{dtype} low={low}: wrong sums")
    return ""


def bound(world: World) -> str:
    """|result - exact| <= gamma_(N-1) sum |x|; and every rank has the same bits."""
    worst: dict[str, float] = {}
    for low, group in names(world).items():
        for dtype in DTYPES:
            kind = getattr(torch, dtype)
            for seed in range(4):
                generator = torch.Generator(world.device).manual_seed(seed)
                inputs = []
                for _ in range(world.size):
                    x = torch.randn(100_003, generator=generator, device=world.device)
                    scale = torch.randint(-5, 6, x.shape, generator=generator, device=world.device)
                    # No term near the subnormals: those the float32 addition flushes.
                    x = torch.where(x.abs() < 1e-3, torch.full_like(x, 1e-3), x)
                    inputs.append(torch.ldexp(x, scale).to(kind))
                got = ops.all_reduce(inputs[world.rank], "sum", group, algorithm=ALGORITHM)
                exact = sum(x.double() for x in inputs)
                magnitude = sum(x.double().abs() for x in inputs)
                wide = dtype == "float32" or not low
                u = ROUNDOFF["float32" if wide else dtype]
                steps = world.size - 1
                gamma = steps * u / (1 - steps * u)
                last = 0.0 if dtype == "float32" or low else ROUNDOFF[dtype]
                limit = gamma * magnitude + last * (exact.abs() + gamma * magnitude)
                share = ((got.double() - exact).abs() / limit.clamp_min(1e-300)).max().item()
                key = f"{dtype}{'' if wide else ' lines'}"
                worst[key] = max(worst.get(key, 0.0), share)
                if share > 1:
                    raise WrongBits(f"{key}: error is {share:.2f} of the bound")
                mine = bits(got).view(torch.uint8).cpu()  # Gloo knows no 16-bit integers
                first = mine.clone()
                dist.broadcast(first, 0)
                if not torch.equal(mine, first):
                    raise WrongBits(f"{key}: rank {world.rank} differs from rank 0")
    return ", ".join(f"{key} {share:.2f} of the bound" for key, share in worst.items())


def graphs(world: World) -> str:
    """Replays: the epochs live on the device."""
    checks = Checks(world)
    group = names(world)[True]
    for numel in (100, 70_000, 1 << 20):
        inputs = exact_inputs(world, numel, torch.float32, 1)
        want = bits(sum(inputs))
        x, out = inputs[world.rank], torch.empty(numel, device=world.device)
        ops.all_reduce_out(x, "sum", group, algorithm=ALGORITHM, out=out)
        world.sync()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(5):
                ops.all_reduce_out(x, "sum", group, algorithm=ALGORITHM, out=out)
        for replay in range(40):
            out.zero_()
            graph.replay()
            checks.compare(out, want, f"{numel}, replay {replay}")
    return checks.finish()


def refused(world: World) -> str:
    """What LL128 cannot do is an error, and the group works on."""
    x = torch.ones(100, device=world.device)
    wrong: list[tuple[torch.Tensor, str]] = [(x, "max"), (x, "avg"), (x.int(), "sum")]
    for tensor, op in wrong:
        try:
            llcoll.all_reduce(tensor, op, algorithm=ALGORITHM)
        except llcoll.LlcollError as error:
            if ALGORITHM not in str(error):
                raise
        else:
            raise WrongBits(f"{op} of {tensor.dtype} was accepted")
    if llcoll.all_reduce(x)[0].item() != world.size:
        raise WrongBits("a sum after the errors is wrong")
    return ""


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--calls", type=int, default=3000)
    args: Any = arguments.parse_args()
    world = start(args)
    return run_parts(world, "LL128", (sums, mixed, specials, bound, graphs, refused))


if __name__ == "__main__":
    sys.exit(main())
