"""torch.distributed's forms of the collectives, lists too, beside torch.distributed's own."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from jobs import State

import llcoll


def as_torch_has_them(state: State) -> list[str]:
    """torch.distributed's names and shapes beside torch.distributed (Gloo), lists too."""
    n, rank, device = state["world_size"], state["rank"], state["device"]
    wrong: list[str] = []

    def compare(what: str, got: Any, want: Any) -> None:
        for a, b in zip(got, want, strict=True):
            if a.shape != b.shape or not torch.equal(a.cpu(), b):
                wrong.append(f"{what}: {a.tolist()}, not {b.tolist()}")

    def mine(*shape: int, seed: int = 0) -> torch.Tensor:
        generator = torch.Generator().manual_seed(100 * seed + rank)
        return torch.randint(-50, 50, shape, generator=generator).float()

    def here(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        return [one.to(device) for one in tensors]

    for shape in ((3,), (2, 3), ()):
        x = mine(*shape)
        want = [torch.empty(shape) for _ in range(n)]
        dist.all_gather(want, x)
        spread = [torch.empty((*shape, 2), device=device)[..., 0] for _ in range(n)]
        compare(f"all_gather_list {shape}", llcoll.all_gather_list(spread, x.to(device)), want)
        stacked = torch.empty((n, *shape), device=device)
        llcoll.all_gather_into_tensor(stacked, x.to(device))
        compare(f"stacked {shape}", stacked, want)
        inputs = [mine(*shape, seed=p + 1) for p in range(n)]
        total = torch.stack(inputs)
        dist.all_reduce(total)
        part = torch.empty(shape, device=device)
        llcoll.reduce_scatter_list(part, here(inputs), "sum")
        compare(f"reduce_scatter_list {shape}", [part], [total[rank]])
        if shape:
            part.zero_()
            llcoll.reduce_scatter_tensor(part, torch.stack(inputs).to(device), "sum")
            compare(f"stacked parts {shape}", [part], [total[rank]])
        swapped = [torch.empty(shape, device=device) for _ in range(n)]
        llcoll.all_to_all_list(swapped, here(inputs))
        rows = [torch.empty((n, *shape)) for _ in range(n)]
        dist.all_gather(rows, torch.stack(inputs))
        compare(f"all_to_all_list {shape}", swapped, [rows[p][rank] for p in range(n)])

    # Unlike shapes: rank p has p rows.
    uneven = [torch.empty(p, 2, device=device) for p in range(n)]
    own = torch.full((rank, 2), float(rank), device=device)
    want = [torch.full((p, 2), float(p)) for p in range(n)]
    compare("unlike all_gather_list", llcoll.all_gather_list(uneven, own), want)
    part = torch.empty(rank, 2, device=device)
    llcoll.reduce_scatter_list(part, here(want), "avg")
    compare("unlike reduce_scatter_list", [part], [want[rank]])
    for one in uneven:
        one.zero_()
    sent = [torch.full((rank, 2), float(rank), device=device) for _ in range(n)]
    compare("unlike all_to_all_list", llcoll.all_to_all_list(uneven, sent), want)

    x = torch.ones(2, device=device)
    for what, call in {
        "outputs; the group has": lambda: llcoll.all_gather_list([x] * (n + 1), x),
        "outputs[0] is torch.float64": lambda: llcoll.all_gather_list([x.double()] * n, x),
        f"outputs[{rank}] has 2 elements, input has 1": lambda: llcoll.all_gather_list(
            [x] * n, x[:1]
        ),
        f"inputs[{rank}] has 2 elements, output has 1": lambda: llcoll.reduce_scatter_list(
            x[:1], [x] * n
        ),
        "numbers; the group has": lambda: llcoll.all_to_all_list([x] * (n + 1), [x] * (n + 1)),
        "are empty": lambda: llcoll.all_to_all_list([], []),
    }.items():
        try:
            call()
            wrong.append(f"no error: {what}")
        except llcoll.LlcollError as error:
            if what not in str(error):
                wrong.append(f"{what}: {error}")
    return wrong
