"""What ranks run on a group of backend "llcoll": torch.distributed's calls, DDP, DTensor."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

import llcoll

State = dict[str, Any]


def join(state: State, rank: int, world_size: int, port: int, name: str, backend: str) -> str:
    torch.set_num_threads(1)
    limit = timedelta(seconds=60)
    tcp = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=limit)
    dist.init_process_group(
        backend, store=dist.PrefixStore(name, tcp), rank=rank, world_size=world_size, timeout=limit
    )
    state.update(rank=rank, world_size=world_size)
    return type(dist.group.WORLD).__name__


def check(ok: bool, what: object) -> None:
    if not ok:
        raise AssertionError(what)


def served() -> set[tuple[str, str]]:
    from llcoll.communicator import _communicators

    return set(_communicators)


def collectives(state: State) -> None:
    rank, world = state["rank"], state["world_size"]
    ranks = torch.arange(float(world))
    x = torch.full((5,), float(rank + 1))
    dist.all_reduce(x)
    check(torch.equal(x, torch.full((5,), float(sum(range(1, world + 1))))), x)
    check(len(served()) == 1, served())
    x = torch.full((5,), rank + 1, dtype=torch.int32)
    work = dist.all_reduce(x, dist.ReduceOp.MAX, async_op=True)
    work.wait()
    check(work.is_completed() and (x == world).all(), x)
    y = torch.full((3,), float(rank))
    dist.broadcast(y, world - 1)
    check((y == world - 1).all(), y)
    gathered = torch.empty(world * 2)
    dist.all_gather_into_tensor(gathered, torch.full((2,), float(rank)))
    check(torch.equal(gathered, ranks.repeat_interleave(2)), gathered)
    stacked = torch.empty(world, 2)
    dist.all_gather_into_tensor(stacked, torch.full((2,), float(rank)))
    check(torch.equal(stacked.view(-1), ranks.repeat_interleave(2)), stacked)
    parts = [torch.empty(2, 3) for _ in range(world)]
    dist.all_gather(parts, torch.full((2, 3), float(rank)))
    check(all((p == r).all() for r, p in enumerate(parts)), parts)
    out = torch.empty(2)
    dist.reduce_scatter_tensor(out, torch.arange(2.0 * world))
    check(torch.equal(out, world * torch.arange(2.0 * world)[2 * rank : 2 * rank + 2]), out)
    dist.reduce_scatter(out, [torch.full((2,), float(r)) for r in range(world)])
    check((out == world * rank).all(), out)
    swapped = torch.empty(world)
    dist.all_to_all_single(swapped, rank * world + ranks)
    check(torch.equal(swapped, world * ranks + rank), swapped)
    z = torch.ones(2)
    dist.reduce(z, 0)
    check(rank != 0 or (z == world).all(), z)
    dist.barrier()

    # What llcoll has not goes to Gloo.
    objects: list[Any] = [None] * world
    dist.all_gather_object(objects, {"rank": rank})
    check(objects == [{"rank": r} for r in range(world)], objects)
    bits = torch.tensor([1 << rank])
    dist.all_reduce(bits, dist.ReduceOp.BOR)
    check(bits.item() == (1 << world) - 1, bits)
    if rank == 0:
        dist.send(torch.tensor([7.0]), 1)
    elif rank == 1:
        got = torch.zeros(1)
        dist.recv(got, 0)
        check(got.item() == 7, got)
    everything = [torch.empty(1) for _ in range(world)] if rank == 0 else None
    dist.gather(torch.tensor([float(rank)]), everything, dst=0)
    check(everything is None or torch.equal(torch.cat(everything), ranks), everything)

    # The functional ones, and a group of its own.
    import torch.distributed._functional_collectives as functional

    group = dist.new_group(list(range(world)))
    total = functional.all_reduce(torch.ones(3), "sum", group)
    check(torch.equal(total + 0, torch.full((3,), float(world))), total)
    rows = functional.all_gather_tensor(torch.full((2,), float(rank)), 0, group)
    check(torch.equal(rows + 0, ranks.repeat_interleave(2)), rows)
    part = functional.reduce_scatter_tensor(torch.ones(2 * world), "sum", 0, group)
    check(torch.equal(part + 0, torch.full((2,), float(world))), part)
    check(len(served()) == 2, served())


def data_parallel(state: State) -> None:
    """Gradients of DDP are the mean over ranks; a step keeps the replicas equal."""
    rank, world = state["rank"], state["world_size"]
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.Tanh(), torch.nn.Linear(9, 2))
    inputs = [torch.randn(4, 6) for _ in range(world)]
    wanted = [torch.zeros_like(p) for p in model.parameters()]
    for x in inputs:
        gradients = torch.autograd.grad(model(x).pow(2).sum(), list(model.parameters()))
        for total, part in zip(wanted, gradients, strict=True):
            total += part / world
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    parallel(inputs[rank]).pow(2).sum().backward()
    for parameter, want in zip(model.parameters(), wanted, strict=True):
        torch.testing.assert_close(parameter.grad, want)


def tensor_parallel(state: State) -> None:
    """A DTensor model, colwise and rowwise, forward and backward."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    world = state["world_size"]
    torch.manual_seed(4)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 12 * world), torch.nn.ReLU(), torch.nn.Linear(12 * world, 8)
    )
    x = torch.randn(5, 8)
    want = model(x)
    (gradient,) = torch.autograd.grad(want.sum(), [model[0].bias])
    mesh = init_device_mesh("cpu", (world,))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    got = model(x)
    torch.testing.assert_close(got, want)
    got.sum().backward()
    torch.testing.assert_close(model[0].bias.grad.full_tensor(), gradient)


def unserved(state: State) -> None:
    """Where llcoll cannot set up, on one rank too, everything is Gloo's."""
    import os

    if state["rank"] == 0:
        os.environ["LLCOLL_POLICY"] = "no such policy"
    x = torch.ones(3)
    dist.all_reduce(x)
    check((x == state["world_size"]).all() and not served(), (x, served()))


def leave(state: State) -> None:
    dist.destroy_process_group()
    llcoll.shutdown()
