"""torch.compile and the process-group backend on the GPU.

python -m llcoll.loopback -n 2 tests/gpu/stack.py [--device cpu] [part...]
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from common import World, WrongBits, parser, run_parts, start

import llcoll


def check(ok: bool, what: object) -> None:
    if not ok:
        raise WrongBits(str(what))


def compiled(world: World) -> str:
    """The op, the fused op and the pass under reduce-overhead: CUDA graphs of Inductor's making."""
    weight = torch.linspace(0.5, 2, 256, device=world.device)
    mode = "reduce-overhead" if world.on_gpu else None

    def layer(x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = torch.ops.llcoll.all_reduce(x * 2)
        x, residual = llcoll.all_reduce_rms_norm(x, residual, weight, 1e-5)
        x = functional.all_reduce(x + 1, "sum", dist.group.WORLD)
        return x * 2, residual

    made = llcoll.compile.enable()
    run = torch.compile(layer, fullgraph=True, mode=mode)
    with torch.no_grad():
        for turn in range(6):
            generator = torch.Generator().manual_seed(10 * turn + world.rank)
            x = torch.randn(4, 256, generator=generator).to(world.device)
            residual = torch.full((4, 256), float(turn), device=world.device)
            got = [t.clone() for t in run(x, residual)]
            reduced = llcoll.all_reduce(x * 2)
            norm, want_residual = llcoll.all_reduce_rms_norm(reduced, residual, weight, 1e-5)
            want = llcoll.all_reduce(norm + 1) * 2
            world.sync()
            check(torch.equal(got[1], want_residual), ("residual", turn))
            torch.testing.assert_close(got[0], want, rtol=1e-6, atol=1e-6)
    llcoll.compile.disable()
    check(made.replaced == 1, f"{made.replaced} replaced")
    return f"mode {mode}"


def backend(world: World) -> str:
    """all_reduce, gathers and DistributedDataParallel on backend "llcoll"."""
    group = dist.new_group(backend="cpu:gloo,cuda:llcoll" if world.on_gpu else "llcoll")
    ranks = torch.arange(float(world.size), device=world.device)
    x = torch.full((1000,), float(world.rank + 1), device=world.device)
    dist.all_reduce(x, group=group)
    check(bool((x == sum(range(1, world.size + 1))).all()), x[:4])
    work = dist.all_reduce(x, group=group, async_op=True)
    work.wait()
    world.sync()
    check(bool((x == world.size * sum(range(1, world.size + 1))).all()), x[:4])
    gathered = torch.empty(2 * world.size, device=world.device)
    dist.all_gather_into_tensor(
        gathered, torch.full((2,), float(world.rank), device=world.device), group=group
    )
    check(torch.equal(gathered, ranks.repeat_interleave(2)), gathered)
    torch.manual_seed(3)
    model = torch.nn.Linear(6, 2).to(world.device)
    inputs = [torch.randn(4, 6).to(world.device) for _ in range(world.size)]
    want = sum(torch.autograd.grad(model(one).pow(2).sum(), model.weight)[0] for one in inputs)
    parallel = torch.nn.parallel.DistributedDataParallel(model, process_group=group)
    parallel(inputs[world.rank]).pow(2).sum().backward()
    world.sync()
    torch.testing.assert_close(model.weight.grad, want / world.size)
    world.drop(group)
    return str(dist.get_backend(group))


def main() -> int:
    return run_parts(start(parser(__doc__).parse_args()), "stack", (backend, compiled))


if __name__ == "__main__":
    sys.exit(main())
