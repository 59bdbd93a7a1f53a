"""The collectives of one exchange on the GPU, bit for bit; --device cpu tries the program alone.

python -m llcoll.loopback -n 4 tests/gpu/collectives.py [--calls N] [--short] [parts...]
"""

from __future__ import annotations

import random
import sys
import time
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from common import Checks, Pool, World, algorithms_for, ops, parser, poisoned, run_parts, start
from torch_reference import FLOATS, bits, reference

import llcoll

POOL = (1 << 20) + 17 + 4096
SIZES = (0, 1, 2, 3, 7, 8, 9, 17, 33, 1024, 8191, 8195, 65537)
LARGE = (1 << 20, (1 << 20) + 17)
TYPES = tuple(reference.TYPES)
KINDS = ("all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce")
REDUCING = ("reduce_scatter", "reduce")
COPYING = ("one_shot_ll", "one_shot_flag", "auto")


def exchange_algorithms(kind: str, dtype: str) -> tuple[str, ...]:
    by_sentinel = kind in REDUCING and dtype in FLOATS
    return (*COPYING, "one_shot_sentinel") if by_sentinel else COPYING


@dataclass
class Call:
    kind: str
    algorithm: str
    pool: Pool
    op: str
    root: int
    sizes: Any  # of the message (root), of each part, or, all_to_all, matrix [giver][taker]
    offset: int
    splits: bool

    def __str__(self) -> str:
        words = f"{self.kind} {self.algorithm} {self.pool.name} {self.op} root {self.root}"
        return f"{words} {self.sizes} [{self.offset}:] splits={self.splits}"


def split(rng: random.Random, total: int, parts: int) -> list[int]:
    way = rng.randrange(4)
    if way == 0:
        sizes = [0] * parts
        sizes[rng.randrange(parts)] = total
        return sizes
    cuts = sorted(rng.randint(0, total) for _ in range(parts - 1))
    return [b - a for a, b in zip([0, *cuts], [*cuts, total], strict=True)]


def make_call(
    rng: random.Random, world: World, kind: str, dtype: str, algorithm: str, op: str, total: int
) -> Call:
    size, uneven = world.size, rng.random() < 0.5
    sizes: Any
    used = total
    if kind in ("broadcast", "reduce"):
        sizes, uneven = total, False
    elif kind == "all_to_all":
        even = [[total // size] * size for _ in range(size)]
        sizes = [split(rng, total, size) for _ in range(size)] if uneven else even
    else:
        sizes = split(rng, total, size) if uneven else [total // size] * size
    pool = world.pool(dtype, POOL)
    return Call(
        kind, algorithm, pool, op, rng.randrange(size), sizes, rng.randint(0, POOL - used), uneven
    )


class Caller:
    """Makes checked calls; how a rank hands its tensors over is its own affair (`own_rng`)."""

    def __init__(self, world: World, checks: Checks, seed: int, group_name: str = "") -> None:
        self.world, self.checks, self.group_name = world, checks, group_name
        self.own_rng = random.Random(seed * 137 + world.rank)

    def tensor(self, source: torch.Tensor) -> torch.Tensor:
        """A copy: aligned, off alignment or strided."""
        numel, way = source.numel(), self.own_rng.choice(("aligned", "shifted", "strided"))
        shift = self.own_rng.choice((1, 3, 8)) if way == "shifted" else 0
        if way == "strided":
            x = poisoned(2 * numel, source.dtype, self.world.device)[::2]
        else:
            x = poisoned(numel + shift, source.dtype, self.world.device)[shift:]
        bits(x).copy_(bits(source))
        return x

    def bits_of(self, call: Call) -> tuple[torch.Tensor, torch.Tensor]:
        """This rank's input, and the bits of its result."""
        rank, ranks, at = self.world.rank, range(self.world.size), call.offset
        inputs = call.pool.inputs
        if call.kind in ("broadcast", "reduce"):
            mine = inputs[rank][at : at + call.sizes]
            if call.kind == "broadcast":
                return mine, bits(inputs[call.root][at : at + call.sizes])
            wanted = call.pool.expected(call.op)[at : at + call.sizes]
            return mine, wanted if rank == call.root else bits(mine)
        if call.kind == "all_to_all":
            own = inputs[rank][at : at + sum(call.sizes[rank])]
            parts = []
            for giver in ranks:
                first = at + sum(call.sizes[giver][:rank])
                parts.append(bits(inputs[giver][first : first + call.sizes[giver][rank]]))
            return own, torch.cat(parts)
        firsts = [at + sum(call.sizes[:p]) for p in ranks]
        if call.kind == "all_gather":
            all_parts = [inputs[p][firsts[p] : firsts[p] + call.sizes[p]] for p in ranks]
            return all_parts[rank], torch.cat([bits(part) for part in all_parts])
        own = inputs[rank][at : at + sum(call.sizes)]
        return own, call.pool.expected(call.op)[firsts[rank] : firsts[rank] + call.sizes[rank]]

    def arguments(self, call: Call) -> tuple[list[Any], dict[str, Any]]:
        named: dict[str, Any] = {"algorithm": call.algorithm}
        if call.splits and call.kind == "all_to_all":
            named["input_splits"] = list(call.sizes[self.world.rank])
            named["output_splits"] = [row[self.world.rank] for row in call.sizes]
        elif call.splits:
            named["splits"] = list(call.sizes)
        args: list[Any] = [call.root] if call.kind in ("broadcast", "reduce") else []
        if call.kind in REDUCING:
            args.append(call.op)
        return [*args, self.group_name], named

    def call(self, call: Call) -> None:
        source, want = self.bits_of(call)
        args, named = self.arguments(call)
        x = self.tensor(source)
        form = self.own_rng.choice(("fresh", "out", "in_place"))
        rank = self.world.rank
        if form == "fresh":
            poisoned(want.numel(), x.dtype, self.world.device)  # most likely where the result goes
            got = getattr(ops, call.kind)(x, *args, **named)
        elif call.kind in ("broadcast", "reduce"):
            getattr(ops, call.kind + "_")(x, *args, **named)
            got = x
        else:
            out = poisoned(want.numel(), x.dtype, self.world.device)
            first = 0 if call.kind == "all_to_all" else sum(call.sizes[:rank])
            if form == "in_place" and call.kind == "all_gather":
                part = out[first : first + x.numel()]
                bits(part).copy_(bits(x))
                x = part
            elif form == "in_place" and call.kind == "reduce_scatter":
                out = x[first : first + want.numel()]
            getattr(ops, call.kind + "_out")(x, *args, **named, out=out)
            got = out
        if form == "fresh":
            bits(x).fill_(0x5B)  # the input is the caller's again
        self.checks.compare(got.contiguous(), want, f"{call} {form}")


def ops_for(dtype: str, kind: str) -> tuple[str, ...]:
    if kind not in REDUCING:
        return ("sum",)
    return tuple(op for op in reference.OPS if (dtype, op) != ("bool", "avg"))


def grid(world: World) -> str:
    """Every collective, protocol, dtype and listed size; every operator at a few."""
    rng = random.Random(1)
    checks = Checks(world)
    caller = Caller(world, checks, 1)
    sizes = (0, 9, 1024) if world.args.short else SIZES
    few = (33,) if world.args.short else (17, 8195)
    for dtype in TYPES:
        for kind in KINDS:
            for op in ops_for(dtype, kind):
                for algorithm in exchange_algorithms(kind, dtype):
                    for total in sizes if op == "sum" else few:
                        caller.call(make_call(rng, world, kind, dtype, algorithm, op, total))
    for kind in () if world.args.short else KINDS:
        for dtype in ("float32", "bfloat16"):
            for algorithm in exchange_algorithms(kind, dtype):
                for total in LARGE:
                    caller.call(make_call(rng, world, kind, dtype, algorithm, "sum", total))
    return checks.finish()


def random_call(rng: random.Random, world: World) -> Call:
    dtype = rng.choice(("float32", "bfloat16", "float16", "int32", "float64", "uint8"))
    kind = rng.choice(KINDS)
    total = rng.randint(0, rng.choice((64, 64, 1024, 9000, 9000, 70000)))
    return make_call(
        rng, world, kind, dtype, rng.choice(exchange_algorithms(kind, dtype)), "sum", total
    )


def mixed(world: World) -> str:
    """All kinds and all-reduces back to back; now and then one rank is milliseconds late."""
    rng = random.Random(2)
    own_rng = random.Random(1000 + world.rank)
    checks = Checks(world)
    caller = Caller(world, checks, 2)
    for _ in range(60 if world.args.short else world.args.calls):
        late = own_rng.random()
        if late < 0.01:
            world.delay(own_rng.uniform(0.1, 3))
        elif late < 0.015:
            time.sleep(own_rng.uniform(0.0005, 0.003))
        if rng.random() < 0.3:
            pool = world.pool(rng.choice(("float32", "bfloat16", "int32")), POOL)
            numel = rng.choice((1, 64, 1000, 8195, 65537))
            at = rng.randint(0, POOL - numel)
            algorithm = rng.choice(algorithms_for(pool.name))
            got = ops.all_reduce(pool.own[at : at + numel], algorithm=algorithm)
            label = f"{algorithm} all_reduce {pool.name} {numel}"
            checks.compare(got, pool.expected("sum")[at : at + numel], label)
        else:
            caller.call(random_call(rng, world))
    return checks.finish()


def runs_ahead(world: World) -> str:
    """A root that is far ahead of slow receivers, then one that others are far ahead of."""
    rng = random.Random(3)
    checks = Checks(world)
    caller = Caller(world, checks, 3)
    for idx in range(40 if world.args.short else 600):
        kind = ("broadcast", "reduce", "all_gather", "all_to_all")[idx % 4]
        dtype = rng.choice(("float32", "int32"))
        algorithm = rng.choice(exchange_algorithms(kind, dtype))
        call = make_call(rng, world, kind, dtype, algorithm, "sum", rng.choice((1, 33, 5000)))
        call.root = idx // 50 % world.size
        if (world.rank != call.root) == (idx // 25 % 2 == 0) and idx % 10 == world.rank % 10:
            world.delay(0.5)
        caller.call(call)
    return checks.finish()


def chunks(world: World) -> str:
    """Several epochs in one launch: a small scratch; pairs that need different numbers of them."""
    rng = random.Random(4)
    checks = Checks(world)
    small = world.group(scratch_bytes=world.args.small_scratch)
    caller = Caller(world, checks, 4, small.group_name)
    for kind in KINDS:
        for dtype in ("float32", "bfloat16", "uint8"):
            for algorithm in exchange_algorithms(kind, dtype):
                for total in (POOL - 5, 5, POOL // 3, 70_001):
                    total = min(total, 9000) if world.args.short else total
                    caller.call(make_call(rng, world, kind, dtype, algorithm, "sum", total))
    world.drop(small)
    return checks.finish()


def wraps(world: World) -> str:
    rng = random.Random(6)
    checks = Checks(world)
    for wrap in (32,) if world.args.short else (31, 32, 63):
        group = world.group(first_epoch=(1 << wrap) - 4, scratch_bytes=8 << 20)
        caller = Caller(world, checks, wrap, group.group_name)
        for _ in range(20 if world.args.short else 80):
            if (rng.randint(0, 9) + world.rank) % 10 == 0:
                world.delay(0.3)
            caller.call(random_call(rng, world))
        world.drop(group)
    return checks.finish()


def graphs(world: World) -> str:
    """Captured, replayed on changed inputs, between eager calls."""
    if not world.on_gpu:
        return "no graphs on the CPU"
    rng = random.Random(7)
    checks = Checks(world)
    caller = Caller(world, checks, 7)
    for _ in range(2 if world.args.short else 12):
        calls = [random_call(rng, world) for _ in range(rng.choice((1, 3, 5, 9)))]
        prepared = [caller.bits_of(call) for call in calls]
        inputs = [bits(source).clone().view(source.dtype) for source, _ in prepared]
        world.sync()
        graph = torch.cuda.CUDAGraph()
        results = []
        with torch.cuda.graph(graph):
            for call, x in zip(calls, inputs, strict=True):
                args, named = caller.arguments(call)
                results.append(getattr(ops, call.kind)(x, *args, **named))
        for round_idx in range(6):
            for result in results:
                bits(result).fill_(0x5B)
            if (round_idx + world.rank) % (2 * world.size) == 0:
                world.delay(0.5)
            for _ in range(rng.choice((1, 2, 3))):
                graph.replay()
            for call, result, (_, want) in zip(calls, results, prepared, strict=True):
                checks.compare(result, want, f"replay {round_idx}: {call}")
            caller.call(random_call(rng, world))
    return checks.finish()


def timeout(world: World) -> str:
    """One rank does not call: the others name it, the collective too."""
    absent = world.size - 1
    for kind in KINDS:
        group = world.group(timeout=1.0, scratch_bytes=8 << 20)
        x = torch.ones(world.size * 64, device=world.device)
        args = [0] if kind in ("broadcast", "reduce") else []
        named = {"group_name": group.group_name, "algorithm": "one_shot_ll"}
        op = getattr(ops, kind)
        op(x, *args, **named)
        world.sync()
        begin = time.monotonic()
        if world.rank != absent:
            try:
                op(x, *args, **named)
                world.sync()
                llcoll.check(group)
            except RuntimeError as error:
                text = f"{type(error).__name__}: {error}"
            else:
                raise AssertionError(f"{kind}: no error although rank {absent} did not call")
            if "CollectiveTimeout" not in text or f"rank {absent} " not in text or kind not in text:
                raise AssertionError(f"{kind}: rank {absent} is not named: {text}")
            if time.monotonic() - begin > 8:
                raise AssertionError(f"{kind}: {time.monotonic() - begin:.1f} s for 1 s")
        dist.barrier()
        world.drop(group)
    return ""


PARTS = (grid, mixed, runs_ahead, chunks, wraps, graphs, timeout)


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--calls", type=int, default=4000, help="of the part `mixed`")
    arguments.add_argument("--small-scratch", type=int, default=4 << 20, help="bytes, for `chunks`")
    arguments.add_argument("--short", action="store_true", help="for memory checkers")
    args = arguments.parse_args()
    world = start(args)
    left_out = {timeout} if args.short and not args.parts else set()
    return run_parts(world, "collectives", [part for part in PARTS if part not in left_out])


if __name__ == "__main__":
    sys.exit(main())
