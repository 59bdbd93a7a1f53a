from collections.abc import Callable
from typing import Any

import torch

class Plan:
    tensor: torch.Tensor
    out: torch.Tensor
    signature: str
    def __call__(self) -> None: ...
    def run(self) -> None: ...

def create(
    group_name: str,
    rank: int,
    world_size: int,
    is_default: bool,
    timeout: float,
    policy: str,
    allow_low_precision: bool,
    scratch_bytes: int,
    algorithm: str,
    debug: bool,
    first_epoch: int,
    table: str,
    pool_bytes: int,
    all_gather: Callable[[bytes], list[bytes]],
    /,
) -> None: ...
def use_cuda_hooks(capsule: Any, /) -> None: ...
def deferred_error_capsule() -> Any: ...
def set_front(
    capsule: Any, tensor_type: type, watches: tuple[Callable[[], Any], ...], /
) -> bool: ...
def all_reduce(
    input: torch.Tensor,
    reduce_op: str,
    group_name: str | None,
    algorithm: str,
    out: torch.Tensor,
    /,
) -> bool: ...
def set_error_classes(
    error: type[BaseException],
    timeout: type[BaseException],
    mismatch: type[BaseException],
    aborted: type[BaseException],
    /,
) -> None: ...
def check(group_name: str, /) -> None: ...
def abort(group_name: str, reason: str, /) -> None: ...
def flight_record(group_name: str, reason: str, /) -> str: ...
def unregister(group_name: str, /) -> bool: ...
def resolve(group_name: str, numel: int, dtype: str, reduce_op: str, algorithm: str, /) -> str: ...
def plan(number: int, tensor: torch.Tensor, out: torch.Tensor, /) -> Plan: ...
def take_interrupt() -> BaseException | None: ...
def stop_signal_checks() -> None: ...
def select(
    table: str,
    cuda: bool,
    shares_device: bool,
    compute_capability: int,
    world_size: int,
    policy: str,
    allow_low_precision: bool,
    num_bytes: int,
    dtype: str,
    reduce_op: str,
    /,
) -> str: ...
def default_table(
    cuda: bool, shares_device: bool, compute_capability: int, world_size: int, /
) -> tuple[str, str, str]: ...
def usable(
    algorithm: str, dtype: str, reduce_op: str, policy: str, allow_low_precision: bool, /
) -> bool: ...
def ping_pong(cpu_a: int, cpu_b: int, trips: int, batches: int, /) -> list[float]: ...
def repeat(
    group_name: str,
    input_address: int,
    output_address: int,
    numel: int,
    dtype: str,
    reduce_op: str,
    algorithm: str,
    calls: int,
    batches: int,
    /,
) -> list[float]: ...
def algorithms() -> list[str]: ...
def reduce_ops() -> list[str]: ...
def collectives() -> list[str]: ...
