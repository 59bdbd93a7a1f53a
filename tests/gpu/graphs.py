"""CUDA graphs: many of them, odd numbers of calls, eager calls in between, inputs that change."""

from __future__ import annotations

import gc
import random
from dataclasses import dataclass

import torch
from common import Caller, Checks, Pool, World, algorithms_for, ops
from torch_reference import bits

import llcoll

POOL = (1 << 20) + 17 + 64
NO_GRAPHS = "no graphs on the CPU"


@dataclass
class Call:
    pool: Pool
    algorithm: str
    x: torch.Tensor
    result: torch.Tensor
    in_place: bool


class Captured:
    """A graph of an odd number of calls, each with buffers of its own and a kernel in between."""

    def __init__(self, world: World, rng: random.Random, num_calls: int) -> None:
        self.world, self.rng = world, rng
        self.graph = torch.cuda.CUDAGraph()
        self.calls: list[Call] = []
        buffers = []
        for _ in range(num_calls):
            pool = world.pool(rng.choice(("float32", "bfloat16", "int32", "float16")), POOL)
            pool.expected("sum")
            numel = rng.choice((1, 8, 64, 1000, 8195, 65536))
            x = torch.empty(numel, dtype=pool.dtype, device=world.device)
            buffers.append((pool, x, rng.choice(algorithms_for(pool.name)), rng.random() < 0.4))
        self.scratch = torch.zeros(64, device=world.device)
        world.sync()
        with torch.cuda.graph(self.graph):
            for idx, (pool, x, algorithm, in_place) in enumerate(buffers):
                if in_place:
                    # Replays start from the input again, or they would reduce their own results.
                    staged = torch.empty_like(x)
                    bits(staged).copy_(bits(x))
                    ops.all_reduce_(staged, algorithm=algorithm)
                    result = staged
                else:
                    result = ops.all_reduce(x, algorithm=algorithm)
                if idx % 3 == 1:
                    self.scratch.add_(1)  # never waits for the kernel before it
                self.calls.append(Call(pool, algorithm, x, result, in_place))

    def replay(self, checks: Checks, times: int, label: str) -> None:
        offsets = []
        for call in self.calls:
            offset = self.rng.randint(0, POOL - call.x.numel())
            offsets.append(offset)
            bits(call.x).copy_(bits(call.pool.own[offset : offset + call.x.numel()]))
            bits(call.result).fill_(0x5B)
        for _ in range(times):
            self.graph.replay()
        for call, offset in zip(self.calls, offsets, strict=True):
            want = call.pool.expected("sum")[offset : offset + call.x.numel()]
            words = f"{call.algorithm} {call.pool.name} {call.x.numel()} in_place={call.in_place}"
            checks.compare(call.result, want, f"{label}: {words}")


def graphs(world: World) -> str:
    if not world.on_gpu:
        return NO_GRAPHS
    rng = random.Random(20)
    own_rng = random.Random(3000 + world.rank)
    checks = Checks(world)
    caller = Caller(world, checks, 20)
    made = [
        Captured(world, rng, n)
        for n in ((1, 3) if world.args.short else (1, 1, 3, 5, 7, 9, 13, 21))
    ]
    for round_idx in range(4 if world.args.short else 60):
        rng.shuffle(made)
        for captured in made[: rng.randint(1, len(made))]:
            if own_rng.random() < 0.02:
                world.delay(1)
            captured.replay(checks, rng.choice((1, 1, 2, 3)), f"round {round_idx}")
            for _ in range(rng.choice((0, 0, 1, 2))):
                name = rng.choice(("float32", "uint8", "bfloat16"))
                numel = rng.choice((1, 17, 3000, 65537))
                algorithm = rng.choice(algorithms_for(name))
                caller.call(algorithm, world.pool(name, POOL), "sum", rng.randint(0, 9), numel)
    return checks.finish()


def graph_lifetimes(world: World) -> str:
    """Graphs made, replayed and destroyed again and again: nothing stays behind."""
    if not world.on_gpu:
        return NO_GRAPHS
    rng = random.Random(21)
    checks = Checks(world)

    def cycle(num_graphs: int) -> int:
        for idx in range(num_graphs):
            captured = Captured(world, rng, 3)
            captured.replay(checks, 2, f"graph {idx}")
            world.sync()
            del captured
        gc.collect()
        world.sync()
        torch.cuda.empty_cache()
        return torch.cuda.memory_allocated()

    before = cycle(3)
    after = cycle(25)
    if after > before:
        raise AssertionError(f"{after - before} bytes more are allocated after 25 graphs")
    return checks.finish()


def capture_errors(world: World) -> str:
    """First use of a group inside a capture: refused in words, and the process works on."""
    if not world.on_gpu:
        return NO_GRAPHS
    x = torch.ones(64, device=world.device)
    text = ""
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            try:
                ops.all_reduce(x, group_name="never initialised")
            except RuntimeError as error:
                text = str(error)
    except RuntimeError as error:
        text = text or str(error)
    if not text.startswith("LlcollError"):
        raise AssertionError(f"a group without init, inside a capture, gave: {text or 'no error'}")
    checks = Checks(world)
    Caller(world, checks, 22).call("auto", world.pool("float32", POOL), "sum", 0, 999)
    return checks.finish()


def side_stream_capture(world: World) -> str:
    """Calls on three branches of one capture, none of them ordered by the user."""
    if not world.on_gpu:
        return NO_GRAPHS
    pool = world.pool("float32", POOL)
    want = pool.expected("sum")
    parts = [(1000 * i, 1000 * i + (4096, 60, 40000)[i % 3]) for i in range(12)]
    graph, sides = torch.cuda.CUDAGraph(), [torch.cuda.Stream() for _ in range(2)]
    world.sync()
    results = []
    with torch.cuda.graph(graph):
        main = torch.cuda.current_stream()
        for side in sides:
            side.wait_stream(main)
        for i, (first, end) in enumerate(parts):
            with torch.cuda.stream((main, *sides)[(0, 1, 2, 2, 1, 0)[i % 6]]):
                results.append(ops.all_reduce(pool.own[first:end] * 1))
        for side in sides:
            main.wait_stream(side)
    checks = Checks(world)
    for _ in range(20):
        graph.replay()
        for result, (first, end) in zip(results, parts, strict=True):
            checks.compare(result, want[first:end], "branches")
    Caller(world, checks, 23).call("auto", pool, "sum", 0, 999)
    world.sync()
    llcoll.check()
    return checks.finish()
