"""Every result bit for bit, under what breaks such kernels: skew, chunks, wraps, streams, failures.

python -m llcoll.loopback -n 4 tests/gpu/correctness.py [--calls N] [--short] [parts...]
"""

from __future__ import annotations

import random
import sys
import time

import torch
from answers import debug_mode, refusals, set_for, timeout
from common import POOL, Caller, Checks, World, algorithms_for, ops, parser, run_parts, start
from graphs import capture_errors, graph_lifetimes, graphs, side_stream_capture
from symmetric import symmetric, symmetric_chunks, symmetric_graphs
from torch_reference import bits, reference

import llcoll

LIST = (0, 1, 2, 3, 7, 8, 9, 16, 17, 31, 33, 1024, 8191, 8192, 8195, 65537, 1 << 20, (1 << 20) + 17)
OVER_POWERS = tuple((1 << k) + 1 for k in range(2, 20))
TYPES = tuple(reference.TYPES)
LL = ("one_shot_ll", "two_shot_ll")


def ops_for(dtype: str) -> tuple[str, ...]:
    return tuple(op for op in reference.OPS if (dtype, op) != ("bool", "avg"))


def grid(world: World) -> str:
    """Every algorithm, dtype and listed size; every operator at a few; views off alignment."""
    rng = random.Random(1)
    checks = Checks(world)
    caller = Caller(world, checks, 1)
    sizes = (0, 1, 9, 33, 1025, 8195) if world.args.short else sorted({*LIST, *OVER_POWERS})
    few = (33,) if world.args.short else (1, 17, 1024, 8195, 65537)
    for dtype in TYPES:
        pool = world.pool(dtype, POOL)
        for algorithm in algorithms_for(dtype):
            for op in ops_for(dtype):
                for numel in sizes if op == "sum" else few:
                    caller.call(algorithm, pool, op, rng.randint(0, POOL - numel), numel)
    return checks.finish()


def aligned(world: World) -> str:
    """The vector paths: whole buffers at their allocations' starts, in place and out of place."""
    checks = Checks(world)
    for dtype in ("float32", "bfloat16", "float16", "int32", "float64", "float8_e4m3fn"):
        pool = world.pool(dtype, POOL)
        want = pool.expected("sum")
        for numel in (64, 4096, 65536, 1 << 20):
            for algorithm in algorithms_for(dtype):
                x = bits(pool.own[:numel]).clone().view(pool.dtype)
                label = f"{algorithm} {dtype} {numel} aligned"
                checks.compare(ops.all_reduce(x, algorithm=algorithm), want[:numel], label)
                ops.all_reduce_(x, algorithm=algorithm)
                checks.compare(x, want[:numel], label + " in place")
    return checks.finish()


def mixed(world: World) -> str:
    """Random calls back to back; now and then one rank's GPU or host is milliseconds late."""
    rng = random.Random(2)
    own_rng = random.Random(1000 + world.rank)
    checks = Checks(world)
    caller = Caller(world, checks, 2)
    num_calls = 60 if world.args.short else world.args.calls
    names = [n for n in TYPES for _ in range(4 if n in ("float32", "bfloat16", "float16") else 1)]
    for _ in range(num_calls):
        dtype = rng.choice(names)
        algorithm = rng.choice(algorithms_for(dtype))
        op = rng.choice(("sum", "sum", "sum", *ops_for(dtype)))
        largest = rng.choice((64, 64, 1024, 1024, 9000, 9000, 70000, 70000, 1 << 20))
        if rng.random() < 0.9:
            largest = min(largest, 9000)
        numel = rng.randint(0, largest)
        offset = rng.randint(0, POOL - numel)
        late = own_rng.random()
        if late < 0.01:
            world.delay(own_rng.uniform(0.1, 3))
        elif late < 0.015:
            time.sleep(own_rng.uniform(0.0005, 0.003))
        caller.call(algorithm, world.pool(dtype, POOL), op, offset, numel)
    return checks.finish()


def short_after_long(world: World) -> str:
    """What a long message left in the slots must not be taken for a later short one's."""
    rng = random.Random(3)
    checks = Checks(world)
    caller = Caller(world, checks, 3)
    sizes = (
        (200_000, 8, 1, 65537, 3, 3, 8195, 1, 400_001, 17) if not world.args.short else (9000, 1)
    )
    for dtype in ("float32", "bfloat16", "int8"):
        pool = world.pool(dtype, POOL)
        for algorithm in algorithms_for(dtype):
            for round_idx in range(3):
                if (round_idx + world.rank) % world.size == 0:
                    world.delay(1)
                for numel in sizes:
                    caller.call(
                        algorithm, pool, "sum", rng.randint(0, POOL - numel), numel, "fresh"
                    )
    return checks.finish()


def chunks(world: World) -> str:
    """Messages of several epochs in one launch: a small scratch, and the default one exceeded."""
    rng = random.Random(4)
    checks = Checks(world)
    small = world.group(scratch_bytes=world.args.small_scratch)
    caller = Caller(world, checks, 4, small.group_name)
    numel = 600_011 if world.args.short else 3_000_017
    for dtype in ("float32", "bfloat16", "uint8"):
        pool = world.pool(dtype, numel)
        for algorithm in algorithms_for(dtype):
            for size in (numel, numel // 2 + 1, 5, numel // 3, 1 << 18, numel - 1):
                size = min(size, numel)
                caller.call(algorithm, pool, "sum", rng.randint(0, numel - size), size)
    world.drop(small)
    if not world.args.short:
        large = 18_000_003  # 72 MB of float32 beyond the default 64 MiB
        pool = world.pool("float32", large)
        caller = Caller(world, checks, 5)
        # Above the table's last row `auto` is torch's own reduction, in its own order.
        for algorithm in [a for a in algorithms_for("float32") if a != "auto"]:
            for size in (large, 7, large - 1234):
                caller.call(algorithm, pool, "sum", 0, size, "fresh")
        world.sync()
        del world.pools["float32", large]
    return checks.finish()


def wraps(world: World) -> str:
    rng = random.Random(6)
    checks = Checks(world)
    for wrap in (32,) if world.args.short else (31, 32, 63):
        for below in (3,) if world.args.short else (2, 5):
            group = world.group(first_epoch=(1 << wrap) - below, scratch_bytes=8 << 20)
            caller = Caller(world, checks, wrap, group.group_name)
            for dtype in ("float32", "int32"):
                pool = world.pool(dtype, POOL)
                for algorithm in algorithms_for(dtype):
                    for _ in range(10):
                        size = rng.choice((1, 8, 33, 1024, 8195, 65537))
                        if (rng.randint(0, 9) + world.rank) % 10 == 0:
                            world.delay(0.3)
                        caller.call(algorithm, pool, "sum", rng.randint(0, POOL - size), size)
            world.drop(group)
    return checks.finish()


def plans(world: World) -> str:
    """Plans, run between eager calls, on contents that change."""
    rng = random.Random(7)
    checks = Checks(world)
    made = []
    for dtype in ("float32", "bfloat16", "int32"):
        pool = world.pool(dtype, POOL)
        for algorithm in algorithms_for(dtype):
            numel = rng.choice((1, 9, 64, 1024, 8195, 65536))
            x = torch.empty(numel, dtype=pool.dtype, device=world.device)
            out = torch.empty_like(x) if rng.random() < 0.5 else None
            made.append((llcoll.plan(x, "sum", algorithm=algorithm, out=out), x, out, pool))
    caller = Caller(world, checks, 7)
    for _ in range(5 if world.args.short else 30):
        rng.shuffle(made)
        for plan, x, out, pool in made:
            offset = rng.randint(0, POOL - x.numel())
            for run in (plan, plan.run):
                bits(x).copy_(bits(pool.own[offset : offset + x.numel()]))
                run()
                want = pool.expected("sum")[offset : offset + x.numel()]
                checks.compare(x if out is None else out, want, f"plan {pool.name} {x.numel()}")
        caller.call("auto", pool, "sum", 3, rng.choice((1, 100, 5000)))
    return checks.finish()


def narrow_packets(world: World) -> str:
    """LL in 8-byte packets, as over PCIe, across the wrap of their 4-byte flag."""
    rng = random.Random(38)
    checks = Checks(world)
    for first_epoch in (0, (1 << 32) - 40):
        group = set_for(
            "LLCOLL_PACKET_BYTES",
            "8",
            lambda epoch=first_epoch: world.group(scratch_bytes=8 << 20, first_epoch=epoch),
        )
        caller = Caller(world, checks, 38, group.group_name)
        for _ in range(20 if world.args.short else 200):
            dtype = rng.choice(TYPES)
            algorithm = rng.choice(algorithms_for(dtype) if rng.random() < 0.3 else LL)
            numel = rng.choice((1, 7, 64, 1000, 8195, 65537))
            if (rng.randint(0, 20) + world.rank) % 20 == 0:
                world.delay(0.3)
            op = rng.choice(ops_for(dtype))
            caller.call(algorithm, world.pool(dtype, POOL), op, rng.randint(0, POOL - numel), numel)
        world.drop(group)
    return checks.finish()


def streams(world: World) -> str:
    """One communicator from two streams; nothing but llcoll orders them."""
    if not world.on_gpu:
        return "no streams on the CPU"
    rng = random.Random(9)
    checks = Checks(world)
    pair = [torch.cuda.Stream(), torch.cuda.Stream()]
    pools = [world.pool(name, POOL) for name in ("float32", "bfloat16", "int32")]
    for pool in pools:
        pool.expected("sum")
    world.sync()
    kept = []
    for idx in range(40 if world.args.short else 600):
        pool = rng.choice(pools)
        algorithm = rng.choice(algorithms_for(pool.name))
        numel = rng.choice((1, 64, 1024, 8195, 65537))
        offset = rng.randint(0, POOL - numel)
        with torch.cuda.stream(pair[rng.randint(0, 1)]):
            if (idx + world.rank) % 50 == 0:
                world.delay(0.5)
            result = ops.all_reduce(pool.own[offset : offset + numel], algorithm=algorithm)
        kept.append((result, pool, offset, f"{algorithm} {pool.name} {numel} call {idx}"))
    world.sync()
    for result, pool, offset, label in kept:
        checks.compare(result, pool.expected("sum")[offset : offset + result.numel()], label)
    return checks.finish()


def barriers(world: World) -> str:
    checks = Checks(world)
    caller = Caller(world, checks, 10)
    pool = world.pool("float32", POOL)
    for idx in range(20 if world.args.short else 200):
        if (idx + world.rank) % (4 * world.size) == 0:
            world.delay(0.5)
        llcoll.barrier()
        if idx % 3 == 0:
            caller.call("auto", pool, "sum", idx, 1 + 37 * idx)
    world.sync()
    return checks.finish()


def inputs_unchanged(world: World) -> str:
    """Nobody wrote into the inputs of the calls above."""
    checks = Checks(world)
    for (name, numel), pool in world.pools.items():
        again = type(pool)(name, numel, world)
        checks.compare(pool.own, bits(again.own), f"input pool {name}")
    return checks.finish()


PARTS = (
    grid,
    aligned,
    mixed,
    short_after_long,
    chunks,
    wraps,
    plans,
    symmetric,
    symmetric_chunks,
    symmetric_graphs,
    narrow_packets,
    debug_mode,
    streams,
    barriers,
    graphs,
    graph_lifetimes,
    refusals,
    inputs_unchanged,
    timeout,
    capture_errors,
    side_stream_capture,
)
SHORT_LEAVES_OUT = {timeout, capture_errors, side_stream_capture, graph_lifetimes}


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--calls", type=int, default=10_000, help="of the part `mixed`")
    arguments.add_argument("--small-scratch", type=int, default=4 << 20, help="bytes, for `chunks`")
    arguments.add_argument("--short", action="store_true", help="for memory checkers")
    args = arguments.parse_args()
    world = start(args)
    left_out = SHORT_LEAVES_OUT if args.short and not args.parts else set()
    return run_parts(world, "correctness", [part for part in PARTS if part not in left_out])


if __name__ == "__main__":
    sys.exit(main())
