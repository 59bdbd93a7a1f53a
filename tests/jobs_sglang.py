"""SGLang's plugin on ranks: its modules are stood in for by their names alone (docs/stack.md)."""

from __future__ import annotations

import os
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist


class CustomAllreduce:
    """SGLang's legacy class, as far as a subclass sees it."""

    def __init__(self, group: Any, device: Any) -> None:
        raise AssertionError("the stock constructor must not run for the TP group")

    def should_custom_ar(self, inp: torch.Tensor) -> bool:
        return False

    def custom_all_reduce(self, input: torch.Tensor) -> None:
        return None

    def capture(self) -> None: ...
    def close(self) -> None: ...


def plugin(state: dict[str, Any]) -> None:
    import llcoll.sglang

    rank, world = state["rank"], state["world_size"]
    group, other = (dist.new_group(list(range(world))) for _ in range(2))
    prefix = "sglang.srt.distributed"
    names = ["sglang", "sglang.srt", prefix, f"{prefix}.device_communicators"]
    module = ModuleType(f"{prefix}.device_communicators.custom_all_reduce")
    places = ModuleType(f"{prefix}.parallel_state")
    sys.modules.update({name: ModuleType(name) for name in names})
    sys.modules[module.__name__], sys.modules[places.__name__] = module, places
    tp, dp = SimpleNamespace(cpu_group=group), SimpleNamespace(cpu_group=other)
    places._groups = {"tp:0": lambda: tp, "dp:0": lambda: dp}
    module.CustomAllreduce = CustomAllreduce
    stock = SimpleNamespace(_llcoll=None)

    def dispatch_custom_allreduce(group: Any, device: Any) -> Any:
        return lambda group, device: stock

    module.dispatch_custom_allreduce = dispatch_custom_allreduce
    llcoll.sglang.register()
    assert module.dispatch_custom_allreduce is dispatch_custom_allreduce  # off by default
    os.environ["LLCOLL_SGLANG"], os.environ["LLCOLL_SGLANG_MAX_BYTES"] = "1", "4096"
    llcoll.sglang.register()
    ours = module.dispatch_custom_allreduce
    llcoll.sglang.register()
    assert module.dispatch_custom_allreduce is ours

    def made(group: Any) -> Any:
        return ours(group=group, device="cpu")(group=group, device="cpu")

    assert made(other) is stock
    custom = made(group)
    x = torch.full((1024,), float(rank + 1))
    assert not custom.disabled and custom.should_custom_ar(x)
    assert not custom.should_custom_ar(torch.ones(1025))
    with custom.capture():
        result = custom.custom_all_reduce(x)
    assert torch.equal(result, torch.full((1024,), float(sum(range(1, world + 1)))))
    custom.close()
    assert custom.disabled and llcoll.communicator.find_or_none(group) is None
    for name in [*names, module.__name__, places.__name__]:
        del sys.modules[name]
