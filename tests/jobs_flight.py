"""What ranks do in the tests of the flight recorder, of abort and of check."""

from __future__ import annotations

import threading
import time
from typing import Any

import torch
import torch.distributed as dist
from jobs import State
from jobs_failures import Report, attempt, ones

import llcoll


def make_calls(state: State, count: int) -> dict[str, Any]:
    """`count` calls of several kinds, the same on every rank, and the record after them."""
    x = ones(state, 12)
    half = ones(state, 40, torch.bfloat16)
    plan = llcoll.plan(ones(state, 5), "max")
    calls = [
        lambda: llcoll.all_reduce(x),
        lambda: llcoll.all_reduce_(half, "max", algorithm="one_shot_ll"),
        plan,
        lambda: llcoll.broadcast_(x, root=state["world_size"] - 1),
        lambda: llcoll.barrier(),
        lambda: llcoll.all_reduce(x, algorithm="torch"),
        lambda: llcoll.all_gather(x, algorithm="one_shot_flag"),
    ]
    for i in range(count):
        calls[i % len(calls)]()
    return llcoll.dump()


def uneven_calls(state: State) -> dict[str, Any]:
    rank, world_size = state["rank"], state["world_size"]
    ins = [(rank + p) % 3 for p in range(world_size)]
    x = ones(state, sum(ins))
    llcoll.all_to_all(x, input_splits=ins, output_splits=ins)
    llcoll.all_gather(ones(state, rank + 1), splits=list(range(1, world_size + 1)))
    return llcoll.dump()


def some_calls(state: State, counts: list[int], rank: int = -1, **kwargs: Any) -> Report:
    """One all-reduce per entry of `counts`; only by `rank`, where one is named."""

    def calls() -> None:
        for count in counts:
            llcoll.all_reduce(ones(state, count), **kwargs)

    return attempt(calls) if rank in (-1, state["rank"]) else attempt(lambda: None)


def dump_to(state: State, path: str) -> dict[str, Any]:
    return llcoll.dump(path=path)


def dump_while_waiting(state: State) -> dict[str, Any]:
    """From a second thread, in the middle of a call that rank 0 makes late."""
    if state["rank"] == 0:
        time.sleep(1.0)
        llcoll.all_reduce(ones(state, 77))
        return {}
    found: list[dict[str, Any]] = []

    def look() -> None:
        time.sleep(0.5)
        found.append(llcoll.dump())

    thread = threading.Thread(target=look)
    thread.start()
    llcoll.all_reduce(ones(state, 77))
    thread.join()
    return found[0]


def dump_under_fire(state: State, seconds: float) -> bool:
    """Dumps by one thread while another calls: no entry is ever torn."""
    stop = threading.Event()
    bad: list[Any] = []
    seen: list[int] = []

    def look() -> None:
        while not stop.is_set():
            record = llcoll.dump()
            numbers = [call["sequence"] for call in record["calls"]]
            seen.append(record["num_calls"])
            if numbers != sorted(set(numbers)) or len(numbers) > 256:
                bad.append(numbers)
            for call in record["calls"]:
                # Call s of this loop reduces s % 5 + 1 elements, of one type or the other.
                want = (call["sequence"] % 5 + 1, ["float32", "int64"][call["sequence"] % 2])
                if (call["numel"], call["dtype"]) != want:
                    bad.append(call)

    thread = threading.Thread(target=look)
    thread.start()
    end = time.monotonic() + seconds
    sequence, going = 0, True
    while going:
        # The ranks stop after the same call: a multiple of 2000 at which rank 0 found the time up.
        for _ in range(2000):
            sequence += 1
            dtype = [torch.float32, torch.int64][sequence % 2]
            llcoll.all_reduce_(ones(state, sequence % 5 + 1, dtype))
        flag = torch.tensor([time.monotonic() < end])
        dist.broadcast(flag, 0)
        going = bool(flag)
    stop.set()
    thread.join()
    assert not bad, bad[:3]
    return len(set(seen)) > 2


def abort_waiting(state: State, waiting: list[int], aborting: int, delay: float) -> Report:
    """Ranks of `waiting` call; `aborting` (which may be one of them) aborts after a while."""
    if state["rank"] == aborting:

        def abort() -> None:
            time.sleep(delay)
            llcoll.abort(reason="enough")

        thread = threading.Thread(target=abort)
        thread.start()
    report: Report = {}
    if state["rank"] in waiting:
        report = attempt(lambda: llcoll.all_reduce(ones(state, 1000)))
    if state["rank"] == aborting:
        thread.join()
    return report


def after_abort(state: State) -> dict[str, Report]:
    """What each way of calling says on a communicator that is no more."""
    x = ones(state)
    plan = state.get("plan")
    return {
        "front": attempt(lambda: llcoll.all_reduce(x)),
        "front in place": attempt(lambda: llcoll.all_reduce_(x)),
        "op": attempt(lambda: torch.ops.llcoll.all_reduce(x)),
        "gather": attempt(lambda: llcoll.all_gather(x)),
        "barrier": attempt(lambda: llcoll.barrier()),
        "plan": attempt(plan if plan is not None else llcoll.barrier),
        "check": attempt(lambda: llcoll.check()),
    }


def renew(state: State, timeout: float | None = None) -> bool:
    """A new communicator on the same group, once the old one has failed."""
    state.pop("plan", None)
    llcoll.shutdown()
    llcoll.init(device=state["device"], timeout=timeout)
    return bool((llcoll.all_reduce(ones(state, 3000)) == state["world_size"]).all())
