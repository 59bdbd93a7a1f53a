"""Memory that collectives like best; the only user of torch's symmetric memory."""

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from .communicator import Communicator
    from .rendezvous import Exchange

# One buffer per communicator: the scratch lives as long as kernels may touch it, so it is let go
# at shutdown only, after the device has finished.
_scratch: dict[str, Any] = {}
_kept: list[Any] = []


def create_cuda(
    communicator: "Communicator", exchange: "Exchange", arguments: tuple[Any, ...]
) -> None:
    """Maps the scratch of every rank and makes the CUDA communicator. Collective."""
    from torch.distributed import _symmetric_memory as symmetric

    num_bytes = communicator._backend.buffer_bytes(*arguments)
    device = torch.device("cuda", torch.cuda.current_device())
    buffer = symmetric.empty(num_bytes, dtype=torch.uint8, device=device)
    handle = symmetric.rendezvous(buffer, communicator.group_name)
    communicator._backend.create(
        *arguments,
        device.index,
        list(handle.buffer_ptrs),
        handle.multicast_ptr or 0,
        num_bytes,
        exchange.all_gather,
    )
    _scratch[communicator.group_name] = (buffer, handle)


def release_cuda(group_name: str) -> None:
    """After shutdown. Not before the device is done: kernels of the group may still run."""
    held = _scratch.pop(group_name, None)
    if held is not None:
        torch.cuda.synchronize(held[0].device)


def keep_cuda() -> None:
    """At exit, where nothing may wait: the driver frees what the process leaves."""
    _kept.extend(_scratch.values())
    _scratch.clear()


def empty(
    *size: Any,
    dtype: torch.dtype | None = None,
    device: str | torch.device | None = None,
    group: Any = None,
) -> torch.Tensor:
    """Like torch.empty, from the group's pool where its device type has one. Local, not collective.

    Every op takes ordinary tensors too; on CPU none is better than another, so this is torch.empty.
    """
    return torch.empty(*size, dtype=dtype, device=device)
