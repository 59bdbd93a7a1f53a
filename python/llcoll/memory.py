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


def map_cuda(
    communicator: "Communicator", exchange: "Exchange", arguments: tuple[Any, ...]
) -> tuple[Any, ...]:
    """Allocates this rank's scratch and maps every rank's. Collective.

    What create() takes of it: device, every rank's address, the multicast address, bytes.
    """
    from torch.distributed import _symmetric_memory as symmetric

    device = torch.device("cuda", torch.cuda.current_device())
    num_bytes = communicator._backend.buffer_bytes(*arguments)
    made: list[Any] = []

    def allocate() -> None:
        made.append(symmetric.empty(num_bytes, dtype=torch.uint8, device=device))

    def exchange_handles() -> None:
        made.append(symmetric.rendezvous(made[0], communicator.group_name))

    # In steps: a rank that fails in one must not leave its peers waiting in the next.
    exchange.agree(allocate)
    exchange.agree(exchange_handles)
    buffer, handle = made
    _scratch[communicator.group_name] = (buffer, handle)
    return device.index, list(handle.buffer_ptrs), handle.multicast_ptr or 0, num_bytes


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
