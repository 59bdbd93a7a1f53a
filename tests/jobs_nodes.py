"""What ranks do in the tests of groups that span nodes; free of pytest."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import numpy as np
import reference
import torch
import torch.distributed as dist
from jobs import State
from jobs_all_reduce import as_integers, from_bits

import llcoll

Nodes = list[list[int]]


def all_reduce_bits(name: str, op: str, stacked: np.ndarray, nodes: Nodes) -> np.ndarray:
    """Each node in rank order, then the nodes in theirs, one rounding: the invariant policy's."""
    if name == "bool":
        return reference.all_reduce(name, op, stacked)
    kind = reference.TYPES[name]
    acc_name = {np.float32: "float32", np.float64: "float64"}.get(kind.acc, name)
    inner = "sum" if op == "avg" else op
    partial = [
        reference.all_reduce(
            acc_name,
            inner,
            reference.widen(name, stacked[node]).view(reference.TYPES[acc_name].bits),
        )
        for node in nodes
    ]
    total = reference.all_reduce(acc_name, inner, np.stack(partial))
    values = reference.widen(acc_name, total)
    if op == "avg":
        with np.errstate(all="ignore"):
            values = (
                values / values.dtype.type(len(stacked))
                if kind.is_float
                else reference._truncating_divide(values, len(stacked))
            )
    return reference.narrow(name, values)


def bits_of(tensor: torch.Tensor, name: str) -> np.ndarray:
    flat = as_integers(tensor.detach().contiguous()).reshape(-1).cpu()
    return flat.numpy().view(reference.TYPES[name].bits)


def reduce_cases(state: State, nodes: Nodes, cases: list[tuple[str, str, int, str]]) -> list[str]:
    """All-reduces and reduce-scatters bit for bit; what differs."""
    world, rank = state["world_size"], state["rank"]
    wrong = []
    for dtype, op, numel, algorithm in cases:
        stacked = reference.make_inputs(dtype, world, numel, seed=7)
        want = all_reduce_bits(dtype, op, stacked, nodes)
        mine = from_bits(stacked[rank], dtype, state["device"])
        where = f"{dtype} {op} {numel} {algorithm}"
        got = torch.ops.llcoll.all_reduce(mine, op, algorithm=algorithm)
        if not np.array_equal(bits_of(got, dtype), want):
            wrong.append(f"all_reduce {where}")
        again = mine.clone()
        llcoll.all_reduce_(again, op, algorithm=algorithm)
        if not np.array_equal(bits_of(again, dtype), want):
            wrong.append(f"all_reduce_ {where}")
        rows = numel // world
        part = llcoll.reduce_scatter(mine[: rows * world], op, algorithm=algorithm)
        if not np.array_equal(bits_of(part, dtype), want[rank * rows : (rank + 1) * rows]):
            wrong.append(f"reduce_scatter {where}")
        # Uneven parts, into the caller's own part of the input.
        splits = [numel * r // (world * world) for r in range(world)]
        splits[world // 2] += numel - sum(splits)
        begin, end = sum(splits[:rank]), sum(splits[: rank + 1])
        source = mine.clone()
        llcoll.reduce_scatter_out(
            source, op, splits=splits, algorithm=algorithm, out=source[begin:end]
        )
        if not np.array_equal(bits_of(source[begin:end], dtype), want[begin:end]):
            wrong.append(f"reduce_scatter splits {where}")
        root = numel % world
        at_root = llcoll.reduce(mine, root, op, algorithm=algorithm)
        expected = want if rank == root else stacked[rank]
        if not np.array_equal(bits_of(at_root, dtype), expected):
            wrong.append(f"reduce {where}")
    return wrong


def copy_cases(state: State, sizes: list[int], algorithms: list[str]) -> list[str]:
    """All-gathers (even, and with splits), broadcasts and scattered reductions with splits."""
    world, rank = state["world_size"], state["rank"]
    wrong = []
    for numel in sizes:
        for algorithm in algorithms:
            data = [
                torch.randint(0, 255, (numel + r, 3), generator=torch.Generator().manual_seed(r))
                for r in range(world)
            ]
            data = [one.to(state["device"], torch.uint8) for one in data]
            even = [one[:numel] for one in data]
            got = llcoll.all_gather(even[rank], algorithm=algorithm)
            if not torch.equal(got, torch.cat(even)):
                wrong.append(f"all_gather {numel} {algorithm}")
            splits = [numel + r for r in range(world)]
            splits[world // 2] = 0
            uneven = [one[:rows] for one, rows in zip(data, splits, strict=True)]
            out = torch.zeros(sum(splits), 3, dtype=torch.uint8, device=state["device"])
            llcoll.all_gather_out(uneven[rank], splits=splits, algorithm=algorithm, out=out)
            if not torch.equal(out, torch.cat(uneven)):
                wrong.append(f"all_gather splits {numel} {algorithm}")
            counting = torch.arange(sum(splits), dtype=torch.int32, device=state["device"])
            ones = counting + rank
            part = llcoll.reduce_scatter(ones, splits=splits, algorithm=algorithm)
            begin = sum(splits[:rank])
            total = world * counting + sum(range(world))
            if not torch.equal(part, total[begin : begin + splits[rank]]):
                wrong.append(f"reduce_scatter splits {numel} {algorithm}")
            for root in range(world):
                x = even[rank].clone()
                llcoll.broadcast_(x, root, algorithm=algorithm)
                fresh = llcoll.broadcast(even[rank], root, algorithm=algorithm)
                if not (torch.equal(x, even[root]) and torch.equal(fresh, even[root])):
                    wrong.append(f"broadcast {numel} {algorithm} root {root}")
    llcoll.barrier()
    return wrong


def exchange_cases(state: State, numel: int) -> list[str]:
    """All-to-alls, even and with splits, in place and as a plan; the flat calls by name."""
    world, rank, device = state["world_size"], state["rank"], state["device"]
    wrong = []

    def row(source: int, target: int, count: int) -> torch.Tensor:
        ramp = torch.arange(count, dtype=torch.int64, device=device)
        return ramp + 1_000_000 * source + 10_000 * target

    def compare(what: str, got: torch.Tensor, want: list[torch.Tensor]) -> None:
        if not torch.equal(got, torch.cat(want)):
            wrong.append(f"{what} of {numel}")

    ranks = range(world)
    x = torch.cat([row(rank, p, numel) for p in ranks])
    want = [row(p, rank, numel) for p in ranks]
    compare("all_to_all", llcoll.all_to_all(x), want)
    compare("all_to_all in place", llcoll.all_to_all_out(x.clone(), out=torch.empty_like(x)), want)
    out = torch.zeros_like(x)
    plan = llcoll.plan(x, collective="all_to_all", out=out)
    plan()
    compare("all_to_all plan", out, want)
    # Rank a gives b numel * (a + 2 b) % 5 elements: some pairs have none.
    size = lambda a, b: numel * (a + 2 * b) % 5  # noqa: E731
    ins, outs = [size(rank, p) for p in ranks], [size(p, rank) for p in ranks]
    sent = torch.cat([row(rank, p, ins[p]) for p in ranks])
    got = llcoll.all_to_all(sent, input_splits=ins, output_splits=outs)
    compare("all_to_all splits", got, [row(p, rank, outs[p]) for p in ranks])
    mine = row(rank, 0, numel)
    compare(
        "all_gather", llcoll.all_gather(mine, algorithm="torch"), [row(p, 0, numel) for p in ranks]
    )
    compare("broadcast", llcoll.broadcast(mine, 1, algorithm="torch"), [row(1, 0, numel)])
    total = sum(row(p, 0, numel) for p in ranks)
    reduced = llcoll.reduce(mine, world - 1, algorithm="torch")
    compare("reduce", reduced, [total if rank == world - 1 else mine])
    part = llcoll.reduce_scatter(x, algorithm="torch")
    compare("reduce_scatter", part, [sum(row(p, rank, numel) for p in ranks)])
    return wrong


def same_bits(state: State, numel: int, dtype: str, repeats: int) -> list[bytes]:
    """The results of one call, again and again."""
    stacked = reference.make_inputs(dtype, state["world_size"], numel, seed=3, wild_share=0)
    mine = from_bits(stacked[state["rank"]], dtype, state["device"])
    exact = reference.widen(dtype, stacked).astype(np.float64).sum(0)
    scale = np.abs(reference.widen(dtype, stacked).astype(np.float64)).sum(0)
    results = []
    for _ in range(repeats):
        got = llcoll.all_reduce(mine)
        # Up to four roundings to the type, where it is narrow, of 2^-8 each; and the sum's order.
        error = np.abs(got.to(torch.float64).cpu().numpy() - exact)
        assert (error <= scale * (2.0**-6 if dtype == "bfloat16" else 1e-6)).all(), error.max()
        results.append(bits_of(got, dtype).tobytes())
    return results


def forms(state: State) -> list[str]:
    """Gradients, fakes, compiled graphs, plans and out forms; what is wrong."""
    world, rank, device = state["world_size"], state["rank"], state["device"]
    total = float(sum(range(1, world + 1)))
    wrong = []

    def expect(what: str, got: torch.Tensor, value: float) -> None:
        if not torch.equal(got, torch.full_like(got, value)):
            wrong.append(f"{what}: {got.flatten()[:3]} is not {value}")

    x = torch.full((40, 5), float(rank + 1), requires_grad=True, device=device)
    y = llcoll.all_reduce(x)
    (y * (rank + 1)).sum().backward()
    expect("all_reduce", y.detach(), total)
    assert x.grad is not None
    expect("gradient", x.grad, total)

    g = torch.full((3,), float(rank + 1), requires_grad=True, device=device)
    llcoll.all_gather(g).sum().backward()
    assert g.grad is not None
    expect("gradient of all_gather", g.grad, float(world))

    compiled = torch.compile(
        lambda t: torch.ops.llcoll.all_reduce(t, "avg") * 2, fullgraph=True, backend="aot_eager"
    )
    expect(
        "compiled", compiled(torch.full((64,), float(rank + 1), device=device)), 2 * total / world
    )

    for numel in (7, 300_000):
        source = torch.full((numel,), float(rank + 1), device=device)
        out = torch.zeros(numel, device=device)
        llcoll.all_reduce_out(source, out=out)
        expect(f"out {numel}", out, total)
        plan = llcoll.plan(source, out=out)
        out.zero_()
        plan()
        expect(f"plan {numel}", out, total)
        parts = torch.zeros(numel * world, device=device)
        gather = llcoll.plan(source, collective="all_gather", out=parts)
        gather()
        expect(f"gather plan {numel}", parts[:numel], 1.0)
        expect(f"gather plan's end {numel}", parts[-numel:], float(world))
    strided = torch.full((64, 64), float(rank + 1), device=device).t()[::2]
    expect("strided", llcoll.all_reduce(strided), total)
    expect("scalar", llcoll.all_reduce(torch.tensor(float(rank + 1), device=device)), total)
    expect("empty", llcoll.all_reduce(torch.zeros(0, device=device)), 0.0)
    return wrong


def errors(state: State) -> list[str]:
    """Texts of what is refused, before anything is sent: the communicator works on."""
    texts = []
    for call in (
        lambda: llcoll.all_reduce(torch.ones(3), algorithm="one_shot_ll"),
        lambda: llcoll.all_to_all(torch.ones(4 * state["world_size"]), algorithm="lanes"),
        lambda: llcoll.all_gather(torch.ones(3), algorithm="one_shot_flag"),
        lambda: llcoll.broadcast(torch.ones(3), root=99),
    ):
        try:
            call()
            texts.append("no error")
        except llcoll.LlcollError as error:
            texts.append(str(error))
    assert llcoll.all_reduce(torch.ones(3)).tolist() == [float(state["world_size"])] * 3
    return texts


def init_error(state: State, *per_rank: Any, **kwargs: Any) -> str:
    """The text of a failed init; `per_rank`: this rank's nodes= comes first."""
    try:
        llcoll.init(device="cpu", nodes=per_rank[0], **kwargs)
    except llcoll.LlcollError as error:
        return str(error)
    return "no error"


def subgroups(state: State, nodes: Nodes) -> dict[str, Any]:
    """Tensor-parallel groups inside the nodes, data-parallel ones across them."""
    rank = state["rank"]
    inside = [dist.new_group(node) for node in nodes]
    across = [dist.new_group([node[i] for node in nodes]) for i in range(len(nodes[0]))]
    mine = next(n for n, node in enumerate(nodes) if rank in node)
    tp = llcoll.init(inside[mine], device="cpu")
    dp = llcoll.init(across[nodes[mine].index(rank)], device="cpu")
    x = torch.full((1000,), float(rank))
    return {
        "tp": (tp.nodes, llcoll.all_reduce(x, group=tp)[0].item()),
        "dp": (dp.nodes, llcoll.all_reduce(x, group=dp)[0].item()),
        "scattered": llcoll.reduce_scatter(x[: 300 * dp.world_size], group=dp).tolist(),
        "compiled": torch.compile(
            lambda t: torch.ops.llcoll.all_reduce(t, "sum", dp.group_name),
            fullgraph=True,
            backend="aot_eager",
        )(x)[0].item(),
    }


def nodes_of(state: State) -> Nodes:
    return llcoll.communicator.find().nodes


def until_error(state: State, numel: int, algorithm: str, seconds: float) -> dict[str, Any]:
    """Calls until one raises; then what a second call, check() and barrier() say."""
    x = torch.ones(numel)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        began = time.monotonic()
        try:
            llcoll.all_reduce_(x, "max", algorithm=algorithm)
        except llcoll.LlcollError as error:
            later = []
            for call in (lambda: llcoll.all_reduce_(x, "max"), llcoll.check, llcoll.barrier):
                with contextlib.suppress(AssertionError):
                    try:
                        call()
                    except llcoll.LlcollError as again:
                        later.append(type(again).__name__)
            return {
                "error": type(error).__name__,
                "text": str(error),
                "seconds": time.monotonic() - began,
                "later": later,
            }
    return {"error": None, "text": "no error", "seconds": seconds, "later": []}
