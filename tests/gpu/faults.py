"""Faults on GPUs, each a part: `python -m llcoll.loopback -n 4 tests/gpu/faults.py`.

A rank leaves by not calling, never by being killed. `--device cpu` tries the program without a GPU.
Each part breaks a communicator of its own and shows that the device, the process and a new
communicator work on.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from common import World, WrongBits, parser, run_parts, start

import llcoll

LIMIT = 1.0


def need(condition: bool, text: str) -> None:
    if not condition:
        raise WrongBits(text)


def failure(call: Callable[[], Any]) -> tuple[str, str, float]:
    """Class and text of what `call` raised ("" if nothing), and its seconds."""
    began = time.monotonic()
    try:
        call()
    except RuntimeError as error:
        return type(error).__name__, str(error), time.monotonic() - began
    return "", "", time.monotonic() - began


def works_on(world: World, members: list[int]) -> None:
    """The device computes, and a new communicator over `members` reduces."""
    x = torch.arange(1000, device=world.device, dtype=torch.float32)
    need(float((x + 1).sum()) == 500500, "the device context is broken")
    group = dist.new_group(members)
    if world.rank in members:
        llcoll.init(group, device=world.device.type, timeout=world.args.wait)
        for algorithm in ("auto", "one_shot_ll", "two_shot_sentinel", "one_shot_flag"):
            y = llcoll.all_reduce(torch.ones_like(x), group=group, algorithm=algorithm)
            need(bool((y == len(members)).all()), f"wrong sums by {algorithm}")
        world.sync()
    dist.barrier()
    if world.rank in members:
        llcoll.shutdown(group)


def wait_for(world: World, call: Callable[[], Any], group: Any) -> tuple[str, str, float]:
    def all_of_it() -> None:
        call()
        world.sync()
        llcoll.check(group)

    return failure(all_of_it)


def never_calls(world: World) -> str:
    """The last rank never comes: it is named in time, and later calls raise at once."""
    lost = world.size - 1
    for algorithm in ("one_shot_ll", "two_shot_sentinel", "two_shot_flag"):
        group = world.group(timeout=LIMIT)
        if world.rank != lost:
            x = torch.ones(5000, device=world.device)
            call = partial(llcoll.all_reduce, x, group=group, algorithm=algorithm)
            name, text, seconds = wait_for(world, call, group)
            need(name == "CollectiveTimeout", f"{algorithm}: {name} {text}")
            need(f"rank {lost} did not arrive" in text, f"{algorithm}: {text}")
            need(seconds < LIMIT + 1, f"{algorithm}: {seconds:.1f} s")
            name, text, seconds = wait_for(world, call, group)
            need(name != "" and seconds < 0.5, f"the next call: {name} {text} {seconds:.1f} s")
            record = llcoll.dump(group)
            need(record["num_calls"] == 1, f"{record['num_calls']} calls are recorded")
            need(record["calls"][0]["state"] in ("failed", "enqueued"), str(record["calls"][0]))
        world.drop(group)
        works_on(world, list(range(lost)) if lost > 1 else [0, 1])
    return ""


def timeout_in_a_replay(world: World) -> str:
    """One rank stops replaying its graph: check() and the watchdog tell the others."""
    if not world.on_gpu:
        return "only on a GPU"
    group = world.group(timeout=LIMIT)
    x = torch.ones(3000, device=world.device)
    llcoll.all_reduce_(x, group=group)
    world.sync()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(3):
            llcoll.all_reduce_(x, "max", group=group)
    graph.replay()
    world.sync()
    if world.rank != 0:
        began = time.monotonic()
        graph.replay()
        world.sync()
        name, text, _ = failure(lambda: llcoll.check(group))
        need(name == "CollectiveTimeout" and "rank 0 did not arrive" in text, f"{name} {text}")
        need(time.monotonic() - began < LIMIT + 1, "too late")
        need(bool(torch.isnan(x).all()), "the output of a failed call is not NaN")
        states = {call["state"] for call in llcoll.dump(group)["calls"]}
        need("captured" in states, str(states))
    world.drop(group)
    works_on(world, list(range(world.size)))
    return ""


def abort(world: World) -> str:
    """Rank 0 aborts while the others wait for it."""
    group = world.group(timeout=30)
    x = torch.ones(3000, device=world.device)
    if world.rank == 0:
        time.sleep(0.5)
        llcoll.abort(group, "a test")
        name, text, _ = failure(lambda: llcoll.all_reduce(x, group=group))
    else:
        name, text, seconds = wait_for(world, lambda: llcoll.all_reduce(x, group=group), group)
        need(seconds < 3, f"{seconds:.1f} s")
    need(name == "CollectiveAborted", f"{name} {text}")
    world.drop(group)
    works_on(world, list(range(world.size)))
    return ""


def abort_by_a_thread(world: World) -> str:
    """The rank that waits aborts itself, from another thread."""
    group = world.group(timeout=30)
    x = torch.ones(3000, device=world.device)
    if world.rank == 0:
        thread = threading.Thread(target=lambda: (time.sleep(0.5), llcoll.abort(group)))
        thread.start()
        name, text, seconds = wait_for(world, lambda: llcoll.all_reduce(x, group=group), group)
        thread.join()
        need(name == "CollectiveAborted" and seconds < 3, f"{name} {text} {seconds:.1f} s")
    world.drop(group)
    works_on(world, list(range(world.size)))
    return ""


def other_calls(world: World) -> str:
    """Rank 1 makes another call: nobody hangs, and whoever waits in vain says so."""
    odd: list[tuple[int, torch.dtype, str, str]] = [
        (3300, torch.float32, "sum", "one_shot_ll"),
        (3000, torch.bfloat16, "sum", "one_shot_ll"),
        (3000, torch.float32, "max", "one_shot_ll"),
        (3000, torch.float32, "sum", "two_shot_flag"),
    ]
    for call in odd:
        group = world.group(timeout=LIMIT)
        mine = call if world.rank == 1 else (3000, torch.float32, "sum", "one_shot_ll")
        numel, dtype, op, algorithm = mine
        x = torch.ones(numel, dtype=dtype, device=world.device)

        def run(x: Any = x, op: str = op, algorithm: str = algorithm, group: Any = group) -> None:
            llcoll.all_reduce(x, op, group=group, algorithm=algorithm)

        name, text, seconds = wait_for(world, run, group)
        need(name in ("", "CollectiveTimeout", "CollectiveAborted"), f"{call}: {name} {text}")
        need(seconds < LIMIT + 1, f"{call}: {seconds:.1f} s")
        world.drop(group)
    works_on(world, list(range(world.size)))
    return ""


def set_up_fails(world: World) -> str:
    """One rank has no memory for its scratch: all fail together, with one text."""
    from llcoll import communicator

    backend = communicator._ops.backend(world.device.type)
    usual = backend.create
    group = dist.new_group(list(range(world.size)))

    def refuse(*_: Any) -> None:
        raise MemoryError("out of memory (a test)")

    if world.rank == 1:
        backend.create = refuse
    try:
        name, text, _ = failure(lambda: llcoll.init(group, device=world.device.type))
    finally:
        backend.create = usual
    texts: list[Any] = [None] * world.size
    dist.all_gather_object(texts, f"{name}: {text}")
    need(len(set(texts)) == 1 and "rank 1" in text and "out of memory" in text, str(texts))
    works_on(world, list(range(world.size)))
    return ""


PARTS = (never_calls, timeout_in_a_replay, abort, abort_by_a_thread, other_calls, set_up_fails)


def main() -> int:
    return run_parts(start(parser(__doc__).parse_args()), "faults", PARTS)


if __name__ == "__main__":
    os.environ.setdefault("LLCOLL_DUMP_DIR", "none")
    sys.exit(main())
