"""Parts of correctness.py: what ranks are told when calls differ, fail or get no answer."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from common import ALGORITHMS, POOL, SENTINEL, Caller, Checks, World, ops

import llcoll


def set_for(name: str, value: str, make: Callable[[], Any]) -> Any:
    os.environ[name] = value
    try:
        return make()
    finally:
        del os.environ[name]


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
