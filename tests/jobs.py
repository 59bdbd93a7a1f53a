"""Functions that ranks run: joining, leaving, and small parts that several tests share."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

State = dict[str, Any]


def join(
    state: State,
    rank: int,
    world_size: int,
    port: int,
    name: str,
    device: str,
    timeout: float,
    init_options: dict[str, Any] | None,
) -> None:
    """Makes this process rank `rank`; `init_options` None leaves llcoll alone."""
    torch.set_num_threads(1)
    tcp = dist.TCPStore(
        "127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=120)
    )
    limit = timedelta(seconds=timeout)
    dist.init_process_group(
        "gloo", store=dist.PrefixStore(name, tcp), rank=rank, world_size=world_size, timeout=limit
    )
    state.update(rank=rank, world_size=world_size, device=device)
    if device == "cuda":
        torch.cuda.set_device(rank % torch.cuda.device_count())
    if init_options is not None:
        import llcoll

        llcoll.init(device=device, **init_options)


def tensor_of(
    state: State, values: list[float], dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype, device=state["device"])


def synchronize(state: State) -> None:
    if state["device"] == "cuda":
        torch.cuda.synchronize()


def echo(state: State, value: Any) -> Any:
    return state.get("rank"), value


def gloo_sum(state: State) -> float:
    x = torch.tensor([float(state["rank"] + 1)])
    dist.all_reduce(x)
    return x.item()


def raise_value_error(state: State, text: str) -> None:
    raise ValueError(text)


def exit_now(state: State, status: int) -> None:
    os._exit(status)


def sleep(state: State, seconds: float) -> None:
    time.sleep(seconds)
