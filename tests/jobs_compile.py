"""What ranks run for the torch.compile pass: a DTensor model, a Llama-like layer, the cache."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

import llcoll

State = dict[str, Any]


def layer(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> Any:
    """The end of an attention block, and the norm that follows."""
    x = functional.all_reduce(x * 2, "sum", dist.group.WORLD)
    hidden = residual + x
    wide = hidden.to(torch.float32)
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
    return weight * wide.to(hidden.dtype), hidden


def compiled_layer(state: State, cache: str, fuse: bool, enable: bool) -> tuple[int, int, int]:
    """all-reduces that the pass replaced, of these fused, and graphs from the cache."""
    from torch._dynamo.utils import counters

    os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{cache}/{state['rank']}"
    torch._dynamo.reset()
    counters.clear()
    made = llcoll.compile.enable(fuse_rms_norm=fuse) if enable else None
    weight = torch.linspace(0.5, 2, 32)
    run = torch.compile(layer, fullgraph=True, dynamic=True)
    generator = torch.Generator().manual_seed(state["rank"])
    with torch.no_grad():
        for rows in (3, 7):
            x = torch.randn(rows, 32, generator=generator)
            residual = torch.full((rows, 32), 0.25)
            for got, want in zip(run(x, residual, weight), layer(x, residual, weight), strict=True):
                torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    llcoll.compile.disable()
    hits = (
        counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"]
    )
    return (made.replaced, made.fused, hits) if made else (0, 0, hits)


def code_of_layer(state: State, cache: str) -> bool:
    """Whether the code that runs, out of the cache or not, calls llcoll."""
    from torch._inductor.utils import run_and_get_code

    os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{cache}/{state['rank']}"
    torch._dynamo.reset()
    llcoll.compile.enable()
    with torch.no_grad():
        _, code = run_and_get_code(
            torch.compile(layer, fullgraph=True, dynamic=True),
            torch.ones(3, 32),
            torch.ones(3, 32),
            torch.ones(32),
        )
    llcoll.compile.disable()
    return any("torch.ops.llcoll.all_reduce" in text for text in code)


def dtensor_model(state: State, cache: str) -> int:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{cache}/{state['rank']}"
    torch._dynamo.reset()
    world = state["world_size"]
    torch.manual_seed(4)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 12 * world), torch.nn.ReLU(), torch.nn.Linear(12 * world, 8)
    )
    x = torch.randn(5, 8)
    want = model(x)
    mesh = init_device_mesh("cpu", (world,))
    llcoll.init(mesh.get_group(), device="cpu")
    made = llcoll.compile.enable()
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    with torch.no_grad():
        got = torch.compile(model, fullgraph=True)(x)
    torch.testing.assert_close(got, want.detach())
    llcoll.compile.disable()
    return made.replaced
