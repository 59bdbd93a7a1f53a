"""Parts of correctness.py: tensors of the symmetric pool, which peers read in place."""

from __future__ import annotations

import random

import torch
from common import POOL, Checks, World, algorithms_for, ops
from torch_reference import bits

import llcoll


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
