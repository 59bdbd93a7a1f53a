"""What ranks do around a rank that dies, stops, or makes another call than the others."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from jobs import State
from jobs_failures import Report, attempt, ones, works

import llcoll


def mappings() -> int:
    """Segments that this process has mapped or holds open."""
    maps = Path("/proc/self/maps").read_text().count("memfd:llcoll")
    links = []
    for fd in Path("/proc/self/fd").iterdir():
        try:
            links.append(os.readlink(fd))
        except OSError:
            continue  # the one that lists the folder
    return maps + sum("memfd:llcoll" in link for link in links)


def has_mappings(state: State) -> bool:
    return mappings() > 0


def call_after(state: State, delay: float, numel: int, algorithm: str) -> Report:
    x = ones(state, numel)
    time.sleep(delay)
    return attempt(lambda: llcoll.all_reduce_(x, algorithm=algorithm))


def go_on_without(state: State, survivors: list[int], timeout: float) -> dict[str, Any]:
    """Shuts the broken communicator down and makes one over the ranks that are left."""
    llcoll.shutdown()
    left = mappings()
    group = dist.new_group(survivors, use_local_synchronization=True)
    llcoll.init(group, device=state["device"], timeout=timeout)
    fine = works(state, group)
    x = torch.full((70_000,), float(state["rank"] + 1), device=state["device"])
    y = llcoll.all_reduce(x, group=group)
    fine = fine and bool((y == sum(rank + 1 for rank in survivors)).all())
    llcoll.shutdown(group)
    return {"left": left, "works": fine, "left after": mappings()}


def renew(state: State, timeout: float) -> bool:
    llcoll.shutdown()
    assert mappings() == 0
    llcoll.init(device=state["device"], timeout=timeout)
    return works(state, repeats=2)


def odd_call(
    state: State, numel: int, dtype: str, op: str, algorithm: str
) -> tuple[Report, dict[str, Any]]:
    """One call as this rank believes it to be, then a second one that all make alike."""
    x = ones(state, numel, getattr(torch, dtype))

    def calls() -> None:
        llcoll.all_reduce(x, op, algorithm=algorithm)
        llcoll.all_reduce(ones(state, 8), algorithm="one_shot_flag")

    return attempt(calls), llcoll.dump()


def init_raising(state: State, bad_rank: int, where: str) -> Report:
    """An error of no kind that llcoll knows, at some point of one rank's set-up."""

    def boom(*_: Any, **__: Any) -> Any:
        raise OSError("the machine is on fire")

    from llcoll import communicator, settings, tables

    spots: dict[str, tuple[Any, str]] = {
        "settings": (settings, "resolve"),
        "table": (tables, "choose"),
        "backend": (communicator._ops.backend(state["device"]), "create"),
    }
    owner, name = spots[where]
    old = getattr(owner, name)
    if state["rank"] == bad_rank:
        setattr(owner, name, boom)
    try:
        return attempt(lambda: llcoll.init(device=state["device"]))
    finally:
        setattr(owner, name, old)


def init_without_memory(state: State, poor_rank: int) -> Report:
    """No address space for the segments on one rank."""
    old = resource.getrlimit(resource.RLIMIT_AS)
    if state["rank"] == poor_rank:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (6 << 20), old[1]))
    try:
        return attempt(lambda: llcoll.init(device=state["device"]))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, old)


def init_and_work(state: State) -> bool:
    llcoll.init(device=state["device"])
    return works(state, repeats=2)
