"""Memory that collectives like best; the only user of torch's symmetric memory."""

import re
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d

from ._errors import LlcollError
from .pool import Pool

if TYPE_CHECKING:
    from .communicator import Communicator
    from .rendezvous import Exchange


class _Buffer:
    """A rank's symmetric buffer: the scratch, and behind it the pool."""

    def __init__(self, tensor: torch.Tensor, handle: Any, pool_bytes: int) -> None:
        self.tensor = tensor
        self.handle = handle  # keeps the peers' mappings
        self.device = tensor.device
        self.pool = Pool(pool_bytes)
        self.pool_address = tensor.data_ptr() + tensor.numel() - pool_bytes


class _Block:
    """Bytes of a pool, which torch takes as foreign memory.

    torch's storage over them holds this object, so that they go back to the pool with the last
    tensor or view that uses them. It also holds the buffer, which outlives a shutdown that way.
    """

    def __init__(self, buffer: _Buffer, num_bytes: int) -> None:
        self._buffer = buffer
        self._taken = buffer.pool.take(num_bytes)
        self.address = buffer.pool_address + self._taken[0]
        self.__cuda_array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (num_bytes,),
            "data": (self.address, False),
            "strides": None,
        }

    def __del__(self) -> None:
        if hasattr(self, "_taken"):  # not if the pool was full
            self._buffer.pool.give_back(*self._taken)


class _Renumbered(dist.Store):
    """A store in which ranks meet that did not take part in the same rendezvous before.

    torch numbers what ranks exchange in a rendezvous by a counter of the process ("NAME/17/RANK"),
    so after one of a subgroup the others would wait for each other's keys for ever. Here a number
    becomes its place among those of this store.
    """

    def __init__(self, store: dist.Store) -> None:
        super().__init__()
        self._inner = store
        self._places: dict[str, int] = {}

    def _key(self, key: str) -> str:
        match = re.fullmatch(r"(.*/\d+)/(\d+)", key)
        if match is None:
            return key
        return f"{self._places.setdefault(match[1], len(self._places))}/{match[2]}"

    def set(self, key: str, value: Any) -> None:
        self._inner.set(self._key(key), value)

    def get(self, key: str) -> bytes:
        return self._inner.get(self._key(key))

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return self._inner.multi_get([self._key(key) for key in keys])

    def wait(self, keys: list[str], *timeout: Any) -> None:
        self._inner.wait([self._key(key) for key in keys], *timeout)

    def check(self, keys: list[str]) -> bool:
        return self._inner.check([self._key(key) for key in keys])

    def add(self, key: str, value: int) -> int:
        return self._inner.add(self._key(key), value)


# One buffer per communicator: the scratch lives as long as kernels may touch it, so it is let go
# at shutdown only, after the device has finished.
_buffers: dict[str, _Buffer] = {}
_kept: list[_Buffer] = []


def map_cuda(
    communicator: "Communicator", exchange: "Exchange", arguments: tuple[Any, ...]
) -> tuple[Any, ...]:
    """Allocates this rank's scratch and pool and maps every rank's. Collective.

    What create() takes of it: device, every rank's address, the multicast address, bytes.
    """
    from torch.distributed import _symmetric_memory as symmetric

    device = torch.device("cuda", torch.cuda.current_device())
    num_bytes = communicator._backend.buffer_bytes(*arguments)
    made: list[Any] = []

    def allocate() -> None:
        made.append(symmetric.empty(num_bytes, dtype=torch.uint8, device=device))

    # Not by the group itself: a node's ranks have none that torch knows, and one made in Python
    # (the backend "llcoll") has no store, without which torch crashes.
    name: Any = f"llcoll/{communicator.group_name}"
    store = _Renumbered(exchange.store("symmetric memory"))
    group = dist.ProcessGroup(store, exchange.rank, exchange.world_size)

    def exchange_handles() -> None:
        _distributed_c10d._register_process_group(name, group)
        try:
            made.append(symmetric.rendezvous(made[0], name))
        finally:
            _distributed_c10d._unregister_process_group(name)

    # In steps: a rank that fails in one must not leave its peers waiting in the next.
    exchange.agree(allocate)
    exchange.agree(exchange_handles)
    buffer, handle = made
    _buffers[communicator.group_name] = _Buffer(buffer, handle, communicator.settings.pool_bytes)
    return device.index, list(handle.buffer_ptrs), handle.multicast_ptr or 0, num_bytes


def release_cuda(group_name: str) -> None:
    """After shutdown. Not before the device is done: kernels of the group may still run."""
    held = _buffers.pop(group_name, None)
    if held is not None:
        torch.cuda.synchronize(held.device)


def keep_cuda() -> None:
    """At exit, where nothing may wait: the driver frees what the process leaves."""
    _kept.extend(_buffers.values())
    _buffers.clear()


def empty(
    *size: Any,
    dtype: torch.dtype | None = None,
    device: str | torch.device | None = None,
    group: Any = None,
) -> torch.Tensor:
    """Like torch.empty, from the group's symmetric pool where it has one. Local, not collective.

    Peers read and write such tensors in place, so the flag algorithms need no copy; every op takes
    ordinary tensors too, and ranks may differ. The memory goes back to the pool with the last
    tensor that views it, and may be handed out again at once: as with torch's own allocator, a
    tensor that another stream or a captured graph uses must be kept until that is done with it.

    device: by default that of the group's communicator; the CPU where there is none.
    group: as for llcoll.init, which must have been called if the device is CUDA.

    Raises LlcollError where the pool has no room. CPU groups and groups with pool_bytes=0 have no
    pool: there this is torch.empty.
    """
    from .communicator import find, find_or_none

    kind = None if device is None else torch.device(device).type
    communicator = find(group, kind) if kind == "cuda" else find_or_none(group, kind)
    if communicator is None or communicator.device_type != "cuda":
        return torch.empty(*size, dtype=dtype, device=device)
    buffer = _buffers[communicator.memory_name]
    wanted = torch.device("cuda" if device is None else device)
    shape = torch.empty(*size, dtype=dtype, device="meta")
    num_bytes = shape.numel() * shape.element_size()
    elsewhere = wanted.index is not None and wanted.index != buffer.device.index
    if num_bytes == 0 or elsewhere or buffer.pool.num_bytes == 0:
        return torch.empty(
            *size, dtype=dtype, device=wanted if wanted.index is not None else buffer.device
        )
    block = _Block(buffer, num_bytes)
    raw = torch.as_tensor(block, device=buffer.device)
    if raw.data_ptr() != block.address:
        raise LlcollError(f"torch {torch.__version__} copies foreign memory: no pool with it")
    return raw.view(shape.dtype).view(shape.shape)
