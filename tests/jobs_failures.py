"""What ranks do in the failure tests: calls that end in errors, and work that goes on after."""

from __future__ import annotations

import gc
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from jobs import State, synchronize
from jobs_all_reduce import drop_group, make_group

import llcoll

Report = dict[str, Any]


def attempt(call: Callable[[], object]) -> Report:
    """Class names and text of what `call` raised (empty if nothing), and how long it took."""
    began = time.monotonic()
    names: list[str] = []
    text = ""
    try:
        call()
    except RuntimeError as error:
        names, text = [cls.__name__ for cls in type(error).__mro__], str(error)
    return {"error": names, "text": text, "seconds": time.monotonic() - began}


def ones(state: State, numel: int = 100, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(numel, dtype=dtype, device=state["device"])


def all_reduce(state: State, numel: int = 100, *args: Any, **kwargs: Any) -> Report:
    """By the front, which raises the classes of llcoll."""

    def call() -> None:
        llcoll.all_reduce(ones(state, numel), *args, **kwargs)
        synchronize(state)
        llcoll.check(kwargs.get("group"))

    return attempt(call)


def works(state: State, group: Any = None, repeats: int = 20) -> bool:
    """A few calls of each kind give the right sums."""
    world_size = dist.get_world_size(group)
    for _ in range(repeats):
        for numel in (1, 33, 5000):
            for algorithm in ("auto", "one_shot_ll", "two_shot_sentinel", "one_shot_flag"):
                x = llcoll.all_reduce(ones(state, numel), group=group, algorithm=algorithm)
                if not bool((x == world_size).all()):
                    return False
    return True


def missing_rank(
    state: State, missing: int, sizes: list[int], algorithms: list[str], timeout: float
) -> list[tuple[str, int, Report, Report]]:
    """Each algorithm in a communicator of its own: all but `missing` call, one after the other.

    Also the next call on the broken communicator, which must not wait again.
    """
    reports = []
    world = list(range(state["world_size"]))
    for algorithm in algorithms:
        for numel in sizes:
            make_group(state, "broken", world, timeout=timeout)
            group = state["broken"]
            if state["rank"] != missing:
                time.sleep(0.1 * state["rank"])
                kwargs = {"group": group, "algorithm": algorithm}
                first = all_reduce(state, numel, **kwargs)
                reports.append((algorithm, numel, first, all_reduce(state, numel, **kwargs)))
            dist.barrier()
            drop_group(state, "broken")
    # The default group's communicator has seen nothing of it, and a new one can be made.
    make_group(state, "new", world)
    assert works(state) and works(state, state["new"])
    drop_group(state, "new")
    return reports


def resolved(state: State, requested: list[str]) -> list[str]:
    """Which algorithm each request gets, for 100 float32; and the sums are right with it."""
    assert works(state, repeats=1)
    backend = llcoll._ops.backend(state["device"])
    return [backend.resolve("", 100, "float32", "sum", name) for name in requested]


def only(state: State, callers: list[int], numel: int, **kwargs: Any) -> Report | None:
    return all_reduce(state, numel, **kwargs) if state["rank"] in callers else None


def loop_until_error(state: State, numel: int, algorithm: str) -> Report:
    def loop() -> None:
        x = ones(state, numel)
        while True:
            llcoll.all_reduce_(x, algorithm=algorithm)
            x.fill_(1)

    return attempt(loop)


def wait_in(state: State, what: str) -> None:
    """Blocks in a call that nobody else makes, until a signal ends it."""
    if what == "all_reduce":
        try:
            torch.ops.llcoll.all_reduce(ones(state))
        except RuntimeError:
            time.sleep(1)  # the interrupt follows as soon as Python code runs again
    elif what == "front":
        llcoll.all_reduce(ones(state))
    elif what == "barrier":
        llcoll.barrier()
    else:
        state["plan"]()


def make_plan(state: State) -> None:
    state["plan"] = llcoll.plan(ones(state))


def drop_plan(state: State) -> None:
    state.pop("plan", None)
    gc.collect()


def loop_for(state: State, seconds: float) -> Report:
    """Calls for a while; a reduction decides when to stop, so that ranks end together."""

    def loop() -> None:
        end = time.monotonic() + seconds
        while True:
            x = ones(state, 1)
            if time.monotonic() > end:
                x.zero_()
            if llcoll.all_reduce(x, "min").item() == 0:
                return
            if not bool((llcoll.all_reduce(ones(state, 3000)) == state["world_size"]).all()):
                raise AssertionError("wrong sum")

    return attempt(loop)


def new_communicator(state: State) -> bool:
    make_group(state, "afresh", list(range(state["world_size"])))
    fine = works(state, state["afresh"])
    drop_group(state, "afresh")
    return fine


def mismatched(state: State, numel: int, dtype: str, op: str, algorithm: str) -> Report:
    """This rank's idea of the call; the default group is debugged."""
    x = ones(state, numel, getattr(torch, dtype))
    return attempt(lambda: llcoll.all_reduce(x, op, algorithm=algorithm))


def errors_alike(state: State) -> list[tuple[str, Report]]:
    """Wrong calls, made alike on every rank; after each, the communicator works on."""
    x, device = ones(state), state["device"]
    ops = torch.ops.llcoll
    other = "meta"
    half = ones(state).to(torch.int32)
    calls: dict[str, Callable[[], object]] = {
        "op": lambda: llcoll.all_reduce(x, "median"),
        "algorithm": lambda: llcoll.all_reduce(x, algorithm="three_shot"),
        "dtype": lambda: llcoll.all_reduce(x.to(torch.complex64)),
        "int16": lambda: llcoll.all_reduce(x.to(torch.int16)),
        "bool avg": lambda: llcoll.all_reduce(x.bool(), "avg"),
        "sentinel int": lambda: llcoll.all_reduce(half, algorithm="one_shot_sentinel"),
        "sentinel int two": lambda: llcoll.all_reduce(half, algorithm="two_shot_sentinel"),
        "ll128 max": lambda: llcoll.all_reduce(x, "max", algorithm="two_shot_ll128"),
        "group": lambda: ops.all_reduce(x, "sum", "no_such_group"),
        "out shape": lambda: ops.all_reduce_out(x, out=torch.empty(99, device=device)),
        "out dtype": lambda: ops.all_reduce_out(x, out=x.to(torch.float64)),
        "out device": lambda: ops.all_reduce_out(x, out=torch.empty(100, device=other)),
        "expanded": lambda: ops.all_reduce_(x[:1].expand(5)),
        "sparse": lambda: ops.all_reduce(x.view(10, 10).to_sparse()),
    }
    reports = []
    for name, call in calls.items():
        reports.append((name, attempt(call)))
        if not works(state, repeats=1):
            reports.append((name, {"error": ["Broken"], "text": "does not work on"}))
    if not works(state):
        reports.append(("end", {"error": ["Broken"], "text": "does not work on"}))
    return reports


def init_with(state: State, options: dict[str, Any], environment: dict[str, str]) -> Report:
    os.environ.update(environment)
    try:
        return attempt(lambda: llcoll.init(device=state["device"], **options))
    finally:
        for name in environment:
            del os.environ[name]


def init_without_room(state: State, poor_rank: int, limit: str) -> Report:
    """One rank may not make its segment, or has no descriptors left."""
    kind = getattr(resource, limit)
    old = resource.getrlimit(kind)
    if state["rank"] == poor_rank:
        used = len(os.listdir("/proc/self/fd"))
        low = used if limit == "RLIMIT_NOFILE" else 4096
        resource.setrlimit(kind, (low, old[1]))
    try:
        return attempt(lambda: llcoll.init(device=state["device"]))
    finally:
        resource.setrlimit(kind, old)


def init_and_work(state: State) -> bool:
    llcoll.init(device=state["device"])
    return works(state)


def init_twice(state: State) -> bool:
    first = llcoll.init(device=state["device"])
    second = llcoll.init(device=state["device"])
    return first is second and works(state, repeats=1)


def as_context(state: State) -> tuple[bool, Report]:
    with llcoll.init(device=state["device"]):
        fine = works(state, repeats=1)
    return fine, all_reduce(state)


def destroy_first(state: State) -> None:
    """The process group goes before its communicator does."""
    assert works(state, repeats=1)
    dist.destroy_process_group()
    llcoll.shutdown()
    llcoll.shutdown()


def shutdown_twice(state: State) -> Report:
    llcoll.shutdown()
    llcoll.shutdown()
    return all_reduce(state)


def shutdown_and_return(state: State) -> bool:
    """Down and up again, several times, on the same group."""
    for _ in range(3):
        llcoll.shutdown()
        llcoll.init(device=state["device"])
        if not works(state, repeats=1):
            return False
    return True


def late(state: State, rank: int, seconds: float) -> float:
    if state["rank"] == rank:
        time.sleep(seconds)
    return float(llcoll.all_reduce(ones(state, 10))[3])


def two_calls(state: State, late_rank: int, folder: str) -> list[Report]:
    """The late rank waits for the file `go`; the others say by a file of theirs that they begin."""
    if state["rank"] == late_rank:
        while not (Path(folder) / "go").exists():
            time.sleep(0.001)
    else:
        (Path(folder) / f"rank{state['rank']}").touch()
    return [all_reduce(state, algorithm="one_shot_ll") for _ in range(2)]
