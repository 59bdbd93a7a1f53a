"""What ranks do in the tests of the collectives of one exchange: calls whose bits are known."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist
from collective_calls import MAX_REPORTS, Call, Caller, Prepared, lay_out, ops
from jobs import State, synchronize
from jobs_all_reduce import differs, drop_group, from_bits, make_group

import llcoll


def run_calls(
    state: State,
    directory: str,
    calls: list[Any],
    *,
    slow_rank: int = -1,
    group_name: str = "",
) -> tuple[int, list[str]]:
    """Runs the calls in order; how many were wrong, and the first few in words.

    An entry ("all_reduce", ...) of six is an all-reduce, mixed in: kind, algorithm, dtype, op,
    numel, offset.
    """
    rank = state["rank"]
    prepared = Prepared(directory, rank, state["world_size"], state["device"])
    caller = Caller(prepared, group_name)
    reports: list[str] = []
    num_wrong = 0
    for idx, entry in enumerate(calls):
        if slow_rank == rank and idx % 5 == 0:
            time.sleep((idx % 3) * 1e-3)
        style = (7 * idx + 5 * rank) % 48
        try:
            if entry[0] == "all_reduce":
                wrong = run_all_reduce(prepared, entry, group_name)
            else:
                wrong = caller.run(Call(*entry), style)
        except RuntimeError as error:
            wrong = f"{type(error).__name__}: {error}"
        if wrong:
            num_wrong += 1
            if len(reports) < MAX_REPORTS:
                reports.append(f"call {idx} {tuple(entry)} style {style} rank {rank}: {wrong}")
            if "CollectiveTimeout" in wrong or "CollectiveAborted" in wrong:
                break
    synchronize(state)
    return num_wrong, reports


def run_all_reduce(prepared: Prepared, entry: Any, group_name: str) -> str:
    _, algorithm, dtype, op, numel, offset = entry
    x = from_bits(prepared.inputs(dtype, prepared.rank, offset, numel), dtype, prepared.device)
    got = ops.all_reduce(x, op, group_name, algorithm=algorithm)
    want = from_bits(prepared.reduced(dtype, op, offset, numel), dtype, prepared.device)
    return differs(got, want)


def run_calls_in_group(
    state: State,
    name: str,
    options: dict[str, Any],
    directory: str,
    calls: list[Any],
    **kwargs: Any,
) -> tuple[int, list[str]]:
    """As run_calls, in a fresh communicator over all ranks made with `options`."""
    make_group(state, name, list(range(state["world_size"])), **options)
    try:
        return run_calls(state, directory, calls, group_name=state[name].group_name, **kwargs)
    finally:
        drop_group(state, name)


def run_ahead(state: State, root: int, repeats: int) -> list[str]:
    """The root broadcasts, or is the only one to give, as fast as it can; the others are slow."""
    rank, device, wrong = state["rank"], state["device"], []
    for algorithm in ("one_shot_ll", "one_shot_flag", "auto"):
        for idx in range(repeats):
            n = (1, 8, 33, 1024)[idx % 4]
            if rank != root and idx % 7 == rank % 7:
                time.sleep(5e-4)
            x = torch.full((n,), float(idx if rank == root else -1), device=device)
            ops.broadcast_(x, root, algorithm=algorithm)
            if not (x == idx).all():
                wrong.append(f"rank {rank}: {algorithm} broadcast {idx} of {n}: {x[:3].tolist()}")
            if idx % 3 == 0:
                # The root alone receives: now it is the one that others may run ahead of.
                if rank == root and idx % 5 == 0:
                    time.sleep(5e-4)
                y = torch.full((n,), float(rank + idx), device=device)
                got = ops.reduce(y, root, algorithm=algorithm)
                total = sum(r + idx for r in range(state["world_size"]))
                if rank == root and not (got == total).all():
                    wrong.append(f"rank {rank}: {algorithm} reduce {idx}: {got[0]}, not {total}")
            if idx % 4 == 1:
                z = torch.ones(n, device=device)
                ops.all_reduce_(z, algorithm="one_shot_ll")
                if not (z == state["world_size"]).all():
                    wrong.append(f"rank {rank}: all_reduce after {algorithm} {idx}: {z[0]}")
    return wrong[:MAX_REPORTS]


def errors(state: State, cases: list[tuple[str, list[Any], dict[str, Any], str]]) -> list[str]:
    """Every case raises on every rank, says `text`, and leaves the communicator working."""
    wrong = []
    device = state["device"]

    def value(item: Any) -> Any:
        if isinstance(item, dict):
            dtype = getattr(torch, item.get("dtype", "float32"))
            return torch.zeros(item["shape"], dtype=dtype, device=item.get("device", device))
        return item

    for name, args, named, text in cases:
        try:
            getattr(ops, name)(*map(value, args), **{k: value(v) for k, v in named.items()})
            wrong.append(f"{name}{args}{named} raised nothing")
        except RuntimeError as error:
            if text not in str(error):
                wrong.append(f"{name}{args}{named}: {error}")
    x = torch.ones(8, device=device)
    if not (ops.all_reduce(x) == state["world_size"]).all():
        wrong.append("the communicator does not work after the errors")
    return wrong


def call_front(state: State) -> list[str]:
    """The Python front, each function once, and its gradients."""
    n, rank, device, wrong = state["world_size"], state["rank"], state["device"], []

    def expect(what: str, got: torch.Tensor, want: Any) -> None:
        want = torch.as_tensor(want, dtype=got.dtype, device=device)
        if got.shape != want.shape or not torch.equal(got, want):
            wrong.append(f"rank {rank}: {what}: {got.tolist()}, not {want.tolist()}")

    def leaf(*values: float) -> torch.Tensor:
        return torch.tensor(values, device=device, requires_grad=True)

    total = n * (n + 1) // 2
    ranks = list(range(n))
    weights = torch.arange(1.0, n + 1, device=device) * (rank + 1)  # of rank r's loss: (r+1)(p+1)

    x = leaf(float(rank))
    y = llcoll.all_gather(x)
    expect("all_gather", y.detach(), ranks)
    (y * weights).sum().backward()
    expect("all_gather's gradient", x.grad, [total * (rank + 1)])

    x = leaf(*[float(rank + p) for p in ranks])
    y = llcoll.reduce_scatter(x)
    expect("reduce_scatter", y.detach(), [sum(r + rank for r in ranks)])
    (y * (rank + 1)).sum().backward()
    expect("reduce_scatter's gradient", x.grad, [p + 1 for p in ranks])

    x = leaf(*[float(n * rank + p) for p in ranks])
    y = llcoll.all_to_all(x)
    expect("all_to_all", y.detach(), [n * p + rank for p in ranks])
    (y * weights).sum().backward()
    expect("all_to_all's gradient", x.grad, [(rank + 1) * (p + 1) for p in ranks])

    splits = [p + 1 for p in ranks]
    x = leaf(*[float(rank)] * (rank + 1))
    y = llcoll.all_gather(x, splits=splits)
    expect("all_gather with splits", y.detach(), [p for p in ranks for _ in range(p + 1)])
    y.sum().backward()
    expect("its gradient", x.grad, [float(n)] * (rank + 1))

    x = leaf(*[1.0] * total)
    y = llcoll.reduce_scatter(x, "avg", splits=splits)
    expect("reduce_scatter with splits", y.detach(), [1.0] * (rank + 1))
    (y * n * (rank + 1)).sum().backward()
    expect("its gradient", x.grad, [float(p + 1) for p in ranks for _ in range(p + 1)])

    x = leaf(*[float(p) for p in ranks for _ in range(p + 1)])
    y = llcoll.all_to_all(x, input_splits=splits, output_splits=[rank + 1] * n)
    expect("all_to_all with splits", y.detach(), [float(rank)] * ((rank + 1) * n))
    (y * (rank + 1)).sum().backward()
    expect("its gradient", x.grad, [float(p + 1) for p in ranks for _ in range(p + 1)])

    root = n - 1
    x = leaf(float(rank))
    y = llcoll.broadcast(x, root)
    expect("broadcast", y.detach(), [root])
    (y * (rank + 1)).sum().backward()
    expect("broadcast's gradient", x.grad, [total if rank == root else 0])

    x = leaf(float(rank + 1))
    y = llcoll.reduce(x, root)
    expect("reduce", y.detach(), [total if rank == root else rank + 1])
    (y * 3).sum().backward()
    expect("reduce's gradient", x.grad, [3])

    plain = torch.tensor([float(rank)], device=device)
    out = torch.empty(n, device=device)
    expect("all_gather_into_tensor", llcoll.all_gather_into_tensor(out, plain), ranks)
    part = torch.empty(1, device=device)
    expect("reduce_scatter_tensor", llcoll.reduce_scatter_tensor(part, out, "max"), [rank])
    expect("all_to_all_out", llcoll.all_to_all_out(out.clone(), out=out), [rank] * n)
    expect("broadcast_", llcoll.broadcast_(plain.clone(), root), [root])
    expect("reduce_", llcoll.reduce_(plain + 1, root), [total if rank == root else rank + 1])
    expect("of a 0-dim tensor", llcoll.all_gather(plain[0]), ranks)
    for op in ("max", "min", "prod"):
        try:
            llcoll.reduce_scatter(leaf(*[1.0] * n), op).sum().backward()
            wrong.append(f"reduce_scatter by {op} has a gradient")
        except llcoll.LlcollError:
            pass
    return wrong


def missing_rank(state: State, missing: int, algorithms: list[str]) -> list[tuple[str, ...]]:
    """All but `missing` make each call, in a communicator of its own: (call, class, text)."""
    reports = []
    n, rank, device = state["world_size"], state["rank"], state["device"]
    splits = [2] * n
    for algorithm in algorithms:
        for kind in ("all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "uneven"):
            make_group(state, "broken", list(range(n)), timeout=0.5)
            if rank != missing:
                x = torch.ones(2 * n, device=device)
                named: dict[str, Any] = {"group": state["broken"], "algorithm": algorithm}
                call = getattr(llcoll, "all_to_all" if kind == "uneven" else kind)
                if kind == "uneven":
                    named.update(input_splits=splits, output_splits=splits)
                try:
                    call(x, **named)
                    reports.append((algorithm, kind, "", ""))
                except llcoll.LlcollError as error:
                    reports.append((algorithm, kind, type(error).__name__, str(error)))
            dist.barrier()
            drop_group(state, "broken")
    return reports


def mismatches(state: State) -> list[str]:
    """In debug mode: what the ranks disagree on is told on every rank, and nothing hangs."""
    n, rank, device, wrong = state["world_size"], state["rank"], state["device"], []
    last = rank == n - 1
    ones = [1] * n
    cases: list[tuple[str, Any, str]] = [
        ("kinds", lambda x: (llcoll.all_gather if last else llcoll.broadcast)(x), "broadcast"),
        ("roots", lambda x: llcoll.broadcast(x, 0 if last else 1), "root 1"),
        ("sizes", lambda x: llcoll.reduce(x[: n if last else 2 * n]), "reduce of"),
        (
            "splits",
            lambda x: llcoll.all_to_all(
                x[:n] if not last else torch.cat([x[:n], x[:1]]),
                input_splits=ones if not last else [2, *ones[1:]],
                output_splits=ones,
            ),
            "elements out",
        ),
        ("raised", lambda x: llcoll.broadcast(x, 0 if last else n + 5), "root is"),
    ]
    for what, call, text in cases:
        try:
            call(torch.ones(2 * n, device=device))
            wrong.append(f"rank {rank}: {what}: nothing raised")
        except llcoll.LlcollError as error:
            if text not in str(error):
                wrong.append(f"rank {rank}: {what}: {type(error).__name__}: {error}")
        got = llcoll.all_gather(torch.full((1,), float(rank), device=device))
        if got.tolist() != list(range(n)):
            wrong.append(f"rank {rank}: after {what}: {got.tolist()}")
    return wrong


def plans(state: State, directory: str) -> list[str]:
    """Plans of every collective run on the tensors' present contents, between ordinary calls."""
    prepared = Prepared(directory, state["rank"], state["world_size"], state["device"])
    caller, n, wrong = Caller(prepared), state["world_size"], []
    rows: dict[str, Any]
    for width, algorithm in ((0, "auto"), (3, "one_shot_ll"), (2, "one_shot_flag")):
        for count in (1, 40, 1500):
            uneven = [count + p for p in range(n)]
            rows = {
                "broadcast": count,
                "reduce": count,
                "all_gather": uneven,
                "reduce_scatter": uneven,
                "all_to_all": [[count + (p + q) % 3 for q in range(n)] for p in range(n)],
            }
            for kind, sizes in rows.items():
                call = Call(kind, algorithm, "float32", "sum", n - 1, sizes, width, 0, True)
                mine, want = caller.bits(call)
                unit = max(width, 1)
                x = caller.tensor(call, mine, len(mine) // unit, count % 3)
                in_place = kind in ("broadcast", "reduce") and count != 40
                out = lay_out(len(want) // unit, width, x.dtype, state["device"], count % 2)
                _, named = caller.arguments(call)
                plan = llcoll.plan(
                    x, collective=kind, root=n - 1, out=None if in_place else out, **named
                )
                for offset in (0, 77, 501):
                    call = call._replace(offset=offset)
                    mine, want = caller.bits(call)
                    x.copy_(from_bits(mine, "float32", state["device"]).view(x.shape))
                    plan()
                    synchronize(state)
                    got = x if in_place else out
                    # Of a reduce only the root's is written.
                    if kind != "reduce" or in_place or state["rank"] == n - 1:
                        words = differs(got, from_bits(want, "float32", state["device"]))
                        if words:
                            wrong.append(f"rank {state['rank']}: {plan!r}: {words}")
                    ops.all_reduce(torch.ones(5, device=state["device"]))
    try:
        llcoll.plan(torch.ones(4), collective="all_gather")
        wrong.append("a plan of an all_gather without out was made")
    except llcoll.LlcollError as error:
        if "rows" not in str(error):
            wrong.append(str(error))
    return wrong[:MAX_REPORTS]
