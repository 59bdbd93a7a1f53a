"""Every result bit for bit, under what breaks such kernels: skew, chunks, wraps, streams, failures.

python -m llcoll.loopback -n 4 tests/gpu/correctness.py [--calls N] [--short] [parts...]
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from common import (
    ALGORITHMS,
    SENTINEL,
    Caller,
    Checks,
    World,
    algorithms_for,
    end,
    ops,
    parser,
    start,
)
from graphs import capture_errors, graph_lifetimes, graphs, side_stream_capture
from torch_reference import bits, reference

import llcoll

LIST = (0, 1, 2, 3, 7, 8, 9, 16, 17, 31, 33, 1024, 8191, 8192, 8195, 65537, 1 << 20, (1 << 20) + 17)
OVER_POWERS = tuple((1 << k) + 1 for k in range(2, 20))
POOL = (1 << 20) + 17 + 64
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


class Maker:
    """Tensors in the pool or elsewhere, at this rank's own whim; some live on for a while."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.rng = random.Random(seed + world.rank)
        self.kept: list[torch.Tensor] = []

    def tensor(self, numel: int, dtype: torch.dtype, in_pool: bool | None = None) -> torch.Tensor:
        # Freed in another order on every rank, so that the same tensor lies at another offset.
        while len(self.kept) > 3 or (self.kept and self.rng.random() < 0.5):
            del self.kept[self.rng.randrange(len(self.kept))]
        if in_pool is None:
            in_pool = self.rng.random() < 0.6
        if not in_pool:
            return torch.empty(numel, dtype=dtype, device=self.world.device)
        shift = self.rng.choice((0, 0, 0, 16 // dtype.itemsize, 1))  # 1: off the units, staged
        base = llcoll.empty(numel + shift, dtype=dtype, device=self.world.device)
        if self.rng.random() < 0.3:
            self.kept.append(base)
        return base[shift:]


def symmetric(world: World) -> str:
    """Tensors of llcoll.empty on some ranks, ordinary ones on others: nobody else can tell.

    What a call has read is overwritten right after it, and results are taken where they lie.
    """
    rng = random.Random(8)
    maker = Maker(world, 2000)
    checks = Checks(world)
    algorithms = ("one_shot_flag", "two_shot_flag")
    for idx in range(30 if world.args.short else 1500):
        dtype = rng.choice(("float32", "bfloat16", "int32", "float16"))
        algorithm = rng.choice(algorithms if idx % 5 else algorithms_for(dtype))
        numel = rng.choice((1, 8, 63, 64, 1000, 4096, 65536, 1 << 18, (1 << 18) + 3, 1 << 20))
        if numel > 70000 and rng.random() < 0.7:
            numel = 4096
        pool = world.pool(dtype, POOL)
        offset = rng.randint(0, POOL - numel)
        everywhere = rng.choice((None, None, True))
        x = maker.tensor(numel, pool.dtype, everywhere)
        bits(x).copy_(bits(pool.own[offset : offset + numel]))
        want = pool.expected("sum")[offset : offset + numel]
        if maker.rng.random() < 0.02:
            world.delay(1)
        form = rng.randint(0, 2)
        label = f"{algorithm} {dtype} {numel} pool={everywhere} form {form} call {idx}"
        if form == 0:
            ops.all_reduce_(x, algorithm=algorithm)
            y = x.clone()
            bits(x).fill_(0x5B)
        elif form == 1:
            y = maker.tensor(numel, pool.dtype, everywhere)
            ops.all_reduce_out(x, algorithm=algorithm, out=y)
            bits(x).fill_(0x5B)
        else:
            y = ops.all_reduce(x, algorithm=algorithm)
            bits(x).fill_(0x5B)
        checks.compare(y, want, label)
    return checks.finish()


def symmetric_chunks(world: World) -> str:
    """The same over several epochs of one launch, and a pool that is full, or is not there."""
    rng = random.Random(28)
    checks = Checks(world)
    small = world.group(scratch_bytes=world.args.small_scratch, pool_bytes=48 << 20)
    none = world.group(scratch_bytes=8 << 20, pool_bytes=0)
    numel = 600_011 if world.args.short else 3_000_017
    pool = world.pool("float32", numel)
    for idx in range(6 if world.args.short else 40):
        group = none if idx % 8 == 7 else small
        size = rng.choice((numel, numel // 2 + 1, 5, 1 << 18, numel - 1))
        algorithm = rng.choice(("one_shot_flag", "two_shot_flag"))
        in_pool = (idx + world.rank) % 3 != 0
        if in_pool:
            x = llcoll.empty(size, dtype=torch.float32, device=world.device, group=group)
        else:
            x = torch.empty(size, dtype=torch.float32, device=world.device)
        x.copy_(pool.own[:size])
        if rng.random() < 0.5:
            ops.all_reduce_(x, "sum", group.group_name, algorithm=algorithm)
            y = x
        else:
            y = torch.empty_like(x)
            if in_pool and group is small:
                y = llcoll.empty(size, dtype=torch.float32, device=world.device, group=group)
            ops.all_reduce_out(x, "sum", group.group_name, algorithm=algorithm, out=y)
            x.fill_(3)
        checks.compare(y, pool.expected("sum")[:size], f"{algorithm} {size} {in_pool} call {idx}")
    if world.on_gpu:
        held = llcoll.empty(40 << 20, dtype=torch.uint8, device=world.device, group=small)
        try:
            llcoll.empty(40 << 20, dtype=torch.uint8, device=world.device, group=small)
        except llcoll.LlcollError as error:
            if str(40 << 20) not in str(error):
                raise
        else:
            raise AssertionError("the pool gave what it does not have")
        view = held[5:].view(-1)[1:]
        del held  # the view holds the memory
        try:
            llcoll.empty(40 << 20, dtype=torch.uint8, device=world.device, group=small)
        except llcoll.LlcollError:
            del view
        else:
            raise AssertionError("the pool gave away memory that a view still uses")
        llcoll.empty(40 << 20, dtype=torch.uint8, device=world.device, group=small)
    world.sync()
    del x, y
    world.drop(small)
    world.drop(none)
    return checks.finish()


def symmetric_graphs(world: World) -> str:
    """Zero copy replayed: in-place calls back to back, with inputs that change in between."""
    if not world.on_gpu:
        return "no graphs on the CPU"
    rng = random.Random(18)
    checks = Checks(world)
    for algorithm in ("one_shot_flag", "two_shot_flag"):
        for dtype, numel in (("float32", 1000), ("bfloat16", 65536), ("float32", 1 << 18)):
            pool = world.pool(dtype, POOL)
            in_pool = [(world.rank + which) % 3 != 0 for which in range(3)]
            x, y, z = (
                llcoll.empty(numel, dtype=pool.dtype, device=world.device)
                if p
                else torch.empty(numel, dtype=pool.dtype, device=world.device)
                for p in in_pool
            )
            source = torch.empty(numel, dtype=pool.dtype, device=world.device)
            for t in (x, y, z, source):
                bits(t).fill_(0)
            graph = torch.cuda.CUDAGraph()
            world.sync()
            with torch.cuda.graph(graph):
                x.copy_(source)
                ops.all_reduce_(x, algorithm=algorithm)
                z.copy_(x)
                x.copy_(source)  # a peer that still read the last input would see this
                ops.all_reduce_out(x, algorithm=algorithm, out=y)
                bits(x).fill_(0x5B)
            for replay in range(3 if world.args.short else 20):
                offset = rng.randint(0, POOL - numel)
                source.copy_(pool.own[offset : offset + numel])
                if (replay + world.rank) % 7 == 0:
                    world.delay(0.5)
                graph.replay()
                want = pool.expected("sum")[offset : offset + numel]
                checks.compare(z, want, f"{algorithm} {dtype} {numel} in place, replay {replay}")
                checks.compare(y, want, f"{algorithm} {dtype} {numel} into, replay {replay}")
            world.sync()
            del graph
    return checks.finish()


def set_for(name: str, value: str, make: Callable[[], Any]) -> Any:
    os.environ[name] = value
    try:
        return make()
    finally:
        del os.environ[name]


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


def debug_mode(world: World) -> str:
    """Ranks that make different calls are told so, all of them, and nothing was sent."""
    group = set_for("LLCOLL_DEBUG", "1", lambda: world.group(scratch_bytes=8 << 20))
    name = group.group_name
    checks = Checks(world)
    caller = Caller(world, checks, 39, name)
    pool = world.pool("float32", POOL)
    x = pool.own[: 1000 + (world.rank == 0)]
    wrong = (
        lambda: ops.all_reduce(x, group_name=name),
        lambda: ops.all_reduce(x[:9], "max" if world.rank == 0 else "sum", name),
        lambda: ops.all_reduce(x[:9].double() if world.rank == 0 else x[:9], group_name=name),
        lambda: ops.all_reduce(
            x[:9], group_name=name, algorithm=("one_shot_ll", "one_shot_flag")[world.rank == 0]
        ),
        lambda: ops.all_reduce(x[:9], "median" if world.rank == 0 else "sum", name),
    )
    for idx, call in enumerate(wrong):
        caller.call("auto", pool, "sum", idx, 500)
        try:
            call()
        except RuntimeError as error:
            text = str(error)
        else:
            raise AssertionError(f"different calls {idx}: no error on rank {world.rank}")
        own_fault = idx == 4 and world.rank == 0
        if not own_fault and (not text.startswith("CollectiveMismatch") or "rank 0: " not in text):
            raise AssertionError(f"different calls {idx}: {text}")
    caller.call("auto", pool, "sum", 5, 700)
    result = checks.finish()
    world.drop(group)
    return result


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


def refusals(world: World) -> str:
    """Errors that every rank makes alike; the communicator works on."""
    x = torch.ones(8, dtype=torch.int32, device=world.device)
    wrong = [
        lambda: ops.all_reduce(x, algorithm=SENTINEL[0]),
        lambda: ops.all_reduce(x, "median"),
        lambda: ops.all_reduce(x, algorithm="three_shot"),
        lambda: ops.all_reduce(x, group_name="no such group"),
        lambda: ops.all_reduce_out(x, out=torch.ones(7, dtype=torch.int32, device=world.device)),
    ]
    for idx, call in enumerate(wrong):
        try:
            call()
        except RuntimeError as error:
            if not str(error).startswith("LlcollError"):
                raise AssertionError(f"refusal {idx} says {error}") from error
        else:
            raise AssertionError(f"call {idx} was not refused")
    checks = Checks(world)
    Caller(world, checks, 11).call("auto", world.pool("int32", POOL), "sum", 0, 1000)
    return checks.finish()


def timeout(world: World) -> str:
    """One rank does not call: the others name it, and a new communicator works."""
    absent = world.size - 1
    notes = []
    for algorithm in ("one_shot_ll", "two_shot_sentinel", "two_shot_flag"):
        group = world.group(timeout=1.0, scratch_bytes=8 << 20)
        name = group.group_name
        x = torch.ones(5000, device=world.device)
        ops.all_reduce(x, "sum", name, algorithm=algorithm)
        world.sync()
        begin = time.monotonic()
        if world.rank != absent:
            try:
                ops.all_reduce(x, "sum", name, algorithm=algorithm)
                world.sync()
                llcoll.check(group)
            except RuntimeError as error:
                text = f"{type(error).__name__}: {error}"
            else:
                raise AssertionError(f"{algorithm}: no error although rank {absent} did not call")
            waited = time.monotonic() - begin
            if "CollectiveTimeout" not in text or f"rank {absent} " not in text:
                raise AssertionError(f"{algorithm}: rank {absent} is not named: {text}")
            if waited > 8:
                raise AssertionError(f"{algorithm}: {waited:.1f} s for a timeout of 1 s")
            notes.append(f"{waited:.1f}")
        dist.barrier()
        # The latecomer is told too, at once or at its own limit; it must not hang or go on.
        begin = time.monotonic()
        try:
            ops.all_reduce(x, "sum", name, algorithm=algorithm)
            world.sync()
            llcoll.check(group)
        except RuntimeError:
            pass
        else:
            raise AssertionError(f"{algorithm}: a call on the failed communicator went through")
        if time.monotonic() - begin > 8:
            raise AssertionError(
                f"{algorithm}: the latecomer waited {time.monotonic() - begin:.1f} s"
            )
        world.drop(group)
        fresh = world.group(scratch_bytes=8 << 20)
        checks = Checks(world)
        caller = Caller(world, checks, 12, fresh.group_name)
        for idx, other in enumerate(ALGORITHMS * 3):
            caller.call(other, world.pool("float32", POOL), "sum", idx, 3000 + idx)
        checks.finish()
        world.drop(fresh)
    return f"seconds until known: {' '.join(notes)}"


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
    begin = time.monotonic()
    for part in PARTS:
        if args.short and part in SHORT_LEAVES_OUT and not args.parts:
            continue
        world.run(part.__name__, part)
    words = f"FAILED: {', '.join(world.failures)}" if world.failures else "all ok"
    world.say(f"correctness, {world.size} ranks: {words} ({time.monotonic() - begin:.0f} s)")
    return end(world)


if __name__ == "__main__":
    sys.exit(main())
