"""What ranks do in tests that are no list of cases: shapes, groups, plans, the fallback."""

from __future__ import annotations

import random

import numpy as np
import torch
import torch.distributed as dist
from jobs import State, synchronize
from jobs_all_reduce import Case, Prepared, differs, drop_group, lay_out, make_group

import llcoll


def triangle(world_size: int) -> int:
    return world_size * (world_size + 1) // 2


def shapes(state: State, algorithms: tuple[str, ...]) -> list[str]:
    """0-dim, empty, many dimensions, channels last; each keeps its shape and its values' places."""
    wrong = []
    rank, device, total = state["rank"], state["device"], triangle(state["world_size"])
    base = torch.arange(2 * 3 * 4 * 5, dtype=torch.float32, device=device)
    inputs = {
        "0-dim": base[7],
        "empty": base[:0],
        "empty 2-d": base[:0].view(0, 3),
        "4-d": base.view(2, 3, 4, 5),
        "channels last": base.view(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "permuted": base.view(2, 3, 4, 5).permute(3, 1, 0, 2),
        "every third": base[1::3],
        "expanded": base[:4].view(4, 1).expand(4, 6),
        "row of a matrix": base.view(8, 15)[3],
    }
    for algorithm in algorithms:
        for name, x in inputs.items():
            mine = x * (rank + 1)
            if name == "expanded":
                mine = (base[:4] * (rank + 1)).view(4, 1).expand(4, 6)
            got = torch.ops.llcoll.all_reduce(mine, algorithm=algorithm)
            if got.shape != x.shape or not torch.equal(got, x * total):
                wrong.append(f"rank {rank}: {algorithm}, {name}: {got.flatten()[:4].tolist()}")
            if name != "expanded":
                copy = mine.clone(memory_format=torch.preserve_format)
                torch.ops.llcoll.all_reduce_(copy, algorithm=algorithm)
                if not torch.equal(copy, x * total):
                    wrong.append(f"rank {rank}: {algorithm}, {name} in place")
    return wrong


def torch_fallback(state: State) -> list[str]:
    """Sums may round otherwise than ours, by at most one step per addition."""
    wrong = []
    rank, world_size, device = state["rank"], state["world_size"], state["device"]
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.int64):
        for op in ("sum", "min", "max", "prod"):
            for numel in (1, 33, 8195):
                rows = [
                    (torch.arange(numel, device=device) % 5 + r + 1).to(dtype)
                    for r in range(world_size)
                ]
                stacked = torch.stack(rows).double()
                want = getattr(torch, {"min": "amin", "max": "amax"}.get(op, op))(stacked, 0)
                got = torch.ops.llcoll.all_reduce(rows[rank], op, algorithm="torch")
                steps = world_size * torch.finfo(dtype).eps if dtype.is_floating_point else 0
                if not torch.allclose(got.double(), want, rtol=steps, atol=0):
                    wrong.append(f"rank {rank}: {dtype} {op} {numel}: {got[:3]}, not {want[:3]}")
    return wrong


def tensor_inside_data_parallel(state: State) -> list[str]:
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    wrong: list[str] = []
    rank, device = state["rank"], state["device"]
    members = {"tp0": [0, 1], "tp1": [2, 3], "dp0": [0, 2], "dp1": [1, 3]}
    mine = [name for name, ranks in members.items() if make_group(state, name, ranks)]
    for repeat in range(60):
        for name in ["", *mine]:
            for numel in (1, 33, 5000):
                x = torch.full((numel,), float(rank + 1 + repeat), device=device)
                group_name = state[name].group_name if name else ""
                got = torch.ops.llcoll.all_reduce(x, "sum", group_name)
                want = sum(r + 1 + repeat for r in (members[name] if name else range(4)))
                if not (got == want).all():
                    wrong.append(
                        f"rank {rank}: group {name!r}, repeat {repeat}: {got[0]}, not {want}"
                    )
    for name in mine:
        drop_group(state, name)
    return wrong


def pair_and_outsider(state: State) -> list[str]:
    """Ranks 0 and 2 set up and use a group while rank 1 does other things."""
    wrong = []
    rank, device = state["rank"], state["device"]
    if make_group(state, "pair", [0, 2]):
        x = torch.full((100,), float(rank + 1), device=device)
        torch.ops.llcoll.all_reduce_(x, "sum", state["pair"].group_name)
        if not (x == 4).all():
            wrong.append(f"rank {rank}: {x[0]}")
        drop_group(state, "pair")
    else:
        x = torch.ones(3, device=device)
        try:
            torch.ops.llcoll.all_reduce_(x, "sum", "pair")
            wrong.append("no error for a group that this rank has no part in")
        except RuntimeError as error:
            if "pair" not in str(error):
                wrong.append(f"the error does not name the group: {error}")
    dist.barrier()
    return wrong


def plans(state: State, directory: str) -> list[str]:
    """Plans run on the tensor's present contents, in place or not, between ordinary calls."""
    wrong = []
    rank, device = state["rank"], state["device"]
    prepared = Prepared(directory, rank, device)
    for dtype in ("float32", "bfloat16", "int32"):
        for algorithm in ("auto", "one_shot_ll", "two_shot_flag"):
            for op in ("sum", "max"):
                for numel in (1, 9, 1024, 8195):
                    case = Case(algorithm, dtype, op, numel, 0)
                    layout = (rank + numel) % 2
                    x = lay_out(numel, getattr(torch, dtype), device, layout)
                    out = lay_out(numel, x.dtype, device, 1 - layout) if numel != 9 else None
                    plan = llcoll.plan(x, op=op, algorithm=algorithm, out=out)
                    for offset in (0, 77, 5001):
                        case = case._replace(offset=offset)
                        x.copy_(prepared.input(case))
                        plan()
                        synchronize(state)
                        if words := differs(x if out is None else out, prepared.expected(case)):
                            wrong.append(f"rank {rank}: plan of {case}: {words}")
                        torch.ops.llcoll.all_reduce(torch.ones(5, device=device))
    return wrong[:8]
