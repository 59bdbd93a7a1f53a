"""Conditions that broke other libraries' collectives, each a part: `python -m llcoll.loopback -n 4
tests/gpu/broke.py`. `--device cpu` runs them on the CPU, as tests/test_what_broke_others.py does.

The numbers are those of the list in docs/failures.md. What only a GPU can do says so on the CPU.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch_reference
from common import ALGORITHMS, World, WrongBits, parser, run_parts, start
from torch_reference import bits

import llcoll
from llcoll import rendezvous

GPU_ONLY = "only on a GPU"
TWO_SHOT = ("two_shot_ll", "two_shot_sentinel", "two_shot_flag")


def inputs(world: World, numel: int, seed: int, dtype: Any = torch.float32) -> list[torch.Tensor]:
    """Every rank's: small whole numbers, whose sums are exact in every type here."""
    idx = torch.arange(numel, device=world.device)
    return [((idx * 7 + r * 13 + seed * 5) % 15).to(dtype) for r in range(world.size)]


def total(parts: list[torch.Tensor]) -> torch.Tensor:
    return torch_reference.all_reduce("sum", parts)


def check(got: torch.Tensor, want_bits: torch.Tensor, what: str) -> None:
    num_wrong = int((bits(got) != want_bits).sum())
    if num_wrong:
        raise WrongBits(f"{what}: {num_wrong} of {got.numel()} elements are wrong")


def reduce_and_check(
    world: World, numel: int, seed: int, what: str, group: Any = None, algorithm: str = "auto"
) -> None:
    parts = inputs(world, numel, seed)
    check(
        llcoll.all_reduce(parts[world.rank], group=group, algorithm=algorithm), total(parts), what
    )


def dawdle(world: World, rng: random.Random, chance: float = 0.3) -> None:
    """Host and device of this rank fall behind now and then; `rng` is the rank's own."""
    if rng.random() < chance:
        time.sleep(rng.random() * 0.002)
    if world.on_gpu and rng.random() < chance:
        world.delay(rng.random() * 0.3)


@contextlib.contextmanager
def fresh_group(world: World, **options: Any) -> Iterator[Any]:
    group = world.group(**options)
    try:
        yield group
    finally:
        world.drop(group)


def n01_two_streams(world: World) -> str:
    """Two streams (CPU: two threads) over one communicator, in one order, with skewed hosts."""
    rng = random.Random(world.rank)
    parts = [inputs(world, n, n) for n in (1000, 70_000)]
    wants = [total(p) for p in parts]
    results: list[tuple[int, torch.Tensor]] = []
    if world.on_gpu:
        streams = [torch.cuda.Stream(), torch.cuda.Stream()]
        world.sync()
        for i in range(200):
            which = i % 2 if i % 7 else 0
            with torch.cuda.stream(streams[which]):
                dawdle(world, rng)
                results.append((which, llcoll.all_reduce(parts[which][world.rank])))
        world.sync()
    else:
        for i in range(100):
            which = i % 2

            def call(which: int = which) -> None:
                dawdle(world, rng)
                results.append((which, llcoll.all_reduce(parts[which][world.rank])))

            thread = threading.Thread(target=call)
            thread.start()
            thread.join()
    for which, got in results:
        check(got, wants[which], f"stream {which}")
    return f"{len(results)} calls"


def n02_short_after_long(world: World) -> str:
    for algorithm in ALGORITHMS:
        for i, numel in enumerate((300_000, 1, 100, 70_000, 3, 300_000, 5000, 2, 1, 17, 1)):
            reduce_and_check(world, numel, i, f"{algorithm}, {numel}", algorithm=algorithm)
    return ""


def n03_inputs_of_a_graph_change(world: World) -> str:
    """A graph (CPU: a plan) runs again on other inputs."""
    for algorithm in ALGORITHMS:
        x = torch.zeros(5000, device=world.device)
        y = torch.zeros_like(x)
        run: Callable[[], Any]
        if world.on_gpu:
            llcoll.all_reduce_out(x, algorithm=algorithm, out=y)
            world.sync()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                llcoll.all_reduce_out(x, algorithm=algorithm, out=y)
            run = graph.replay
        else:
            run = llcoll.plan(x, algorithm=algorithm, out=y)
        for seed in range(12):
            parts = inputs(world, 5000, seed)
            x.copy_(parts[world.rank])
            run()
            check(y, total(parts), f"{algorithm}, inputs {seed}")
    return ""


def n04_unaligned_views(world: World) -> str:
    for algorithm in ALGORITHMS:
        for dtype in (torch.bfloat16, torch.float32):
            for odd_rank in range(world.size):
                parts = inputs(world, 4099, odd_rank, dtype)
                shift = 1 + odd_rank if world.rank == odd_rank else 0  # nobody else can tell
                base = torch.zeros(4099 + 16, dtype=dtype, device=world.device)
                view = base[shift : shift + 4099]
                view.copy_(parts[world.rank])
                what = f"{algorithm}, {dtype}, rank {odd_rank}"
                check(llcoll.all_reduce(view, algorithm=algorithm), total(parts), what)
                llcoll.all_reduce_(view, algorithm=algorithm)
                check(view, total(parts), f"{what}, in place")
    return ""


def n05_nans_and_subnormals(world: World) -> str:
    """Every 16-bit pattern, all NaNs and subnormals among them, while the caller flushes them."""
    patterns = torch.arange(1 << 16, dtype=torch.int32, device=world.device)
    for dtype in (torch.bfloat16, torch.float16):
        parts = [
            ((patterns * (2 * r + 1)) & 0xFFFF).to(torch.int16).view(dtype)
            for r in range(world.size)
        ]
        want = total(parts)
        flushes = torch.set_flush_denormal(True)
        try:
            for algorithm in ALGORITHMS:
                got = llcoll.all_reduce(parts[world.rank], algorithm=algorithm)
                check(got, want, f"{algorithm}, {dtype}")
        finally:
            torch.set_flush_denormal(False)
    return "" if flushes else "this CPU cannot flush"


def n06_early_trigger(world: World) -> str:
    """Steps of a graph that feed each other: a trigger too early showed as NaN in every step."""
    if not world.on_gpu:
        return GPU_ONLY
    x = inputs(world, 8192, 1)[world.rank].clone()
    buffer = torch.full_like(x, torch.nan)
    graph = torch.cuda.CUDAGraph()

    def steps() -> None:
        for i in range(9):
            buffer.copy_(x)
            llcoll.all_reduce_(buffer, algorithm=ALGORITHMS[i % len(ALGORITHMS)])
            x.copy_(buffer).div_(world.size)
            buffer.fill_(torch.nan)

    steps()
    world.sync()
    with torch.cuda.graph(graph):
        steps()
    parts = [p.double() for p in inputs(world, 8192, 1)]
    mean = torch.stack(parts).mean(0).float()
    for _ in range(50):
        graph.replay()
    # All ranks hold the mean after the first step, and keep it.
    error = float((x - mean).abs().max())
    if not error < 1e-3:
        raise WrongBits(f"the mean is off by {error}")
    return f"off by {error:.1e}"


def n07_fewer_elements_than_ranks(world: World) -> str:
    for algorithm in TWO_SHOT:
        for numel in [*range(1, world.size + 2), 1]:
            reduce_and_check(world, numel, numel, f"{algorithm}, {numel}", algorithm=algorithm)
    return ""


def n09_groups_across_groups(world: World) -> str:
    """Tensor-parallel pairs, and data-parallel groups across them, each meeting on its own."""
    if world.size % 2 or world.size < 4:
        return "needs 4 ranks or more, an even number"
    rng = random.Random(world.rank)
    half = world.size // 2
    tensor = [[2 * i, 2 * i + 1] for i in range(half)]
    data = [list(range(parity, world.size, 2)) for parity in range(2)]
    mine = []
    for members in [*tensor, *data]:
        group = dist.new_group(members)
        if world.rank in members:
            mine.append((group, members))
    for group, members in mine:
        time.sleep(0.05 * (world.rank // 2))  # the pairs come at different times
        llcoll.init(group, device=world.device.type, timeout=world.args.wait)
        x = torch.full((100,), float(world.rank), device=world.device)
        assert float(llcoll.all_reduce(x, group=group)[7]) == sum(members), members
    for i in range(60):
        group, members = mine[i % 3 % 2]
        dawdle(world, rng)
        parts = [inputs(world, 500 + i, i)[r] for r in members]
        got = llcoll.all_reduce(parts[members.index(world.rank)], group=group)
        check(got, total(parts), f"call {i} of {members}")
    world.sync()
    dist.barrier()
    for group, _ in mine:
        llcoll.shutdown(group)
    return ""


def n10_warm_up_communicates(world: World) -> str:
    """The first call of each algorithm, before any capture, is a real one."""
    with fresh_group(world) as group:
        for i, algorithm in enumerate(ALGORITHMS):
            what = f"the first call, {algorithm}"
            reduce_and_check(world, 3000, i, what, group, algorithm)
        if world.on_gpu:
            x = inputs(world, 3000, 50)[world.rank].clone()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                y = llcoll.all_reduce(x, group=group)
            graph.replay()
            check(y, total(inputs(world, 3000, 50)), "the graph behind it")
    return ""


def n11_one_row_or_many(world: World) -> str:
    """A row has the same bits alone and in a batch of 64, by every algorithm and by auto."""
    generator = torch.Generator().manual_seed(world.rank)
    with fresh_group(world, policy="invariant") as group:
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            batch = (torch.randn(64, 1024, generator=generator) * 3).to(dtype).to(world.device)
            alone = llcoll.all_reduce(batch[5:6].contiguous(), group=group)
            for algorithm in ("auto", *ALGORITHMS):
                whole = llcoll.all_reduce(batch, group=group, algorithm=algorithm)
                check(whole[5:6], bits(alone), f"{dtype}, {algorithm}")
    return ""


def n12_input_overwritten_at_once(world: World) -> str:
    rng = random.Random(world.rank)
    for algorithm in ALGORITHMS:
        for i, numel in enumerate((100, 5000, 200_000) * 3):
            parts = inputs(world, numel, i)
            want = total(parts)
            x = parts[world.rank].clone()
            dawdle(world, rng)
            y = llcoll.all_reduce(x, algorithm=algorithm)
            x.fill_(-1)
            check(y, want, f"{algorithm}, {numel}")
    return ""


def n13_two_handles_over_one_scratch(world: World) -> str:
    """Plans, wrappers and names of one communicator, interleaved; no two calls look alike."""
    rng = random.Random(world.rank)
    for algorithm in ALGORITHMS:
        # Constants per call: a result that is another call's shows.
        a, b = (torch.zeros(n, device=world.device) for n in (1000, 1000))
        plan_a, plan_b = llcoll.plan(a, algorithm=algorithm), llcoll.plan(b, algorithm=algorithm)
        for i in range(40):
            dawdle(world, rng, 0.1)
            a.fill_(i + 1)
            b.fill_(1000 + i)
            first, second = (plan_a, plan_b) if i % 3 else (plan_b, plan_a)
            first()
            second()
            c = llcoll.all_reduce(
                torch.full((1000,), 7.0 + i, device=world.device),
                group=dist.group.WORLD,
                algorithm=algorithm,
            )
            for what, x, each in (("a", a, i + 1), ("b", b, 1000 + i), ("c", c, 7.0 + i)):
                want = bits(torch.full_like(x, each * world.size))
                check(x, want, f"{algorithm}, {what}, round {i}")
    return ""


def n14_odd_calls_back_to_back(world: World) -> str:
    """Graphs (CPU: plans) of an odd number of calls, one behind the other, one rank slow."""
    for algorithm in ALGORITHMS:
        for count in (1, 3, 5):
            parts = [inputs(world, 700 * (i + 1), i) for i in range(count)]
            own = [p[world.rank] for p in parts]
            outs = [torch.empty_like(x) for x in own]

            def calls(own: Any = own, outs: Any = outs, algorithm: str = algorithm) -> None:
                for x, out in zip(own, outs, strict=True):
                    llcoll.all_reduce_out(x, algorithm=algorithm, out=out)

            run: Callable[[], Any] = calls
            if world.on_gpu:
                graph = torch.cuda.CUDAGraph()
                calls()
                world.sync()
                with torch.cuda.graph(graph):
                    calls()
                run = graph.replay
            for replay in range(20 if world.on_gpu else 8):
                if world.rank == replay % world.size:
                    world.delay(0.3)
                run()
            for i, out in enumerate(outs):
                check(out, total(parts[i]), f"{algorithm}, call {i} of {count}")
    return ""


def n15_channels_at_different_speeds(world: World) -> str:
    """Grids of one CTA and of all, mixed: a channel that ran few epochs beside one that ran all."""
    rng = random.Random(world.rank)
    order = random.Random(15)
    results = []
    for i in range(240 if world.on_gpu else 120):
        numel = order.choice((1, 64, 3000, 40_000, 200_000))
        algorithm = order.choice(ALGORITHMS)
        dawdle(world, rng, 0.05)
        parts = inputs(world, numel, i)
        results.append((llcoll.all_reduce(parts[world.rank], algorithm=algorithm), total(parts), i))
        if len(results) == 60:
            for got, want, idx in results:
                check(got, want, f"call {idx}")
            results.clear()
    return ""


def n16_symmetric_tensors_in_any_order(world: World) -> str:
    """Each rank frees and takes tensors of the pool in its own order, so offsets differ."""
    rng = random.Random(world.rank)
    for i in range(30 if world.on_gpu else 12):
        numel = (1000, 4096, 70_000)[i % 3]
        tensors = [llcoll.empty(numel, device=world.device) for _ in range(5)]
        keep = rng.randrange(5)
        x = tensors[keep]
        rng.shuffle(tensors)
        while tensors:
            tensors.pop()
        parts = inputs(world, numel, i)
        x.copy_(parts[world.rank])
        algorithm = ("one_shot_flag", "two_shot_flag", "auto")[i % 3]
        y = llcoll.all_reduce(x, algorithm=algorithm)
        check(y, total(parts), f"round {i}, fresh")
        llcoll.all_reduce_(x, algorithm=algorithm)
        del y
        check(x, total(parts), f"round {i}, in place")
        del x  # the last reference: its place may be taken at once
    return ""


def n17_a_wrapper_for_each_call(world: World) -> str:
    """init, plans and wrappers again and again: one workspace, no growth."""

    def used() -> tuple[int, int, int]:
        gc.collect()
        world.sync()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        gpu = torch.cuda.memory_allocated() if world.on_gpu else 0
        return peak, len(list(Path("/proc/self/fd").iterdir())), gpu

    def some(count: int) -> None:
        for i in range(count):
            llcoll.init(device=world.device.type)
            x = torch.full((500,), float(i), device=world.device)
            llcoll.plan(x)()
            assert float(x[3]) == i * world.size, i

    some(100)
    before = used()
    some(300)
    after = used()
    if after[0] > before[0] + 2048 or after[1:] != before[1:]:
        raise AssertionError(f"kB, descriptors, bytes on the GPU: {before}, then {after}")
    return f"{after[0] - before[0]} kB more"


def n18_a_message_before_the_scratch_is_clear(world: World) -> str:
    """One rank is slow in each step of set-up; the others send as soon as they are let."""
    usual = rendezvous.Exchange.all_gather
    for slow in range(world.size):

        def all_gather(self: Any, payload: bytes, slow: int = slow) -> list[bytes]:
            if world.rank == slow:
                time.sleep(0.03)
            answers = usual(self, payload)
            if world.rank == slow:
                time.sleep(0.03)
            return answers

        rendezvous.Exchange.all_gather = all_gather  # type: ignore[method-assign]
        try:
            with fresh_group(world) as group:
                for i, algorithm in enumerate(ALGORITHMS):
                    what = f"{algorithm}, rank {slow} slow"
                    reduce_and_check(world, 2000, i, what, group, algorithm)
        finally:
            rendezvous.Exchange.all_gather = usual  # type: ignore[method-assign]
    return ""


def n19_epochs_before_a_wrap(world: World) -> str:
    for wrap in (2**31, 2**32, 2**63):
        with fresh_group(world, first_epoch=wrap - 4) as group:
            for algorithm in ALGORITHMS:
                for i in range(10):
                    numel = (1000, 3, 70_000)[i % 3]
                    what = f"{algorithm}, epoch 2^{wrap.bit_length() - 1} - 4 + {i}"
                    reduce_and_check(world, numel, i, what, group, algorithm)
    return ""


PARTS = [
    value
    for name, value in sorted(globals().items())
    if name.startswith("n") and name[1:3].isdigit()
]


def main() -> int:
    return run_parts(start(parser(__doc__).parse_args()), "broke", PARTS)


if __name__ == "__main__":
    os.environ.setdefault("LLCOLL_DUMP_DIR", "none")
    sys.exit(main())
