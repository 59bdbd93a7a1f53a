"""A measured group: ranks, device, communicator, and a Gloo group for what is not measured."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

import llcoll

from .. import tables
from . import device as places


@dataclass
class Session:
    device: torch.device
    words: str
    rank: int
    world_size: int
    control: dist.ProcessGroup  # figures travel outside what is measured
    communicator: llcoll.Communicator
    machine: tables.Machine

    @property
    def is_cuda(self) -> bool:
        return self.device.type == "cuda"

    def say(self, *words: Any) -> None:
        if self.rank == 0:
            print(*words, flush=True)

    def barrier(self) -> None:
        dist.barrier(self.control)

    def synchronize(self) -> None:
        if self.is_cuda:
            torch.cuda.synchronize()

    def slowest(self, values: Sequence[float]) -> list[float]:
        """Each figure's largest over the ranks; float("inf") on one rank counts."""
        tensor = torch.tensor(list(values), dtype=torch.float64)
        if tensor.numel():
            dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=self.control)
        return tensor.tolist()

    def total(self, values: Sequence[int]) -> list[int]:
        tensor = torch.tensor(list(values))
        dist.all_reduce(tensor, group=self.control)
        return [int(value) for value in tensor]

    def first_reason(self, reason: str) -> str:
        """The lowest rank's own non-empty text: why a thing cannot be on every rank."""
        every: list[Any] = [None] * self.world_size
        dist.all_gather_object(every, reason, group=self.control)
        found = [(rank, text) for rank, text in enumerate(every) if text]
        return f"rank {found[0][0]}: {found[0][1]}" if found else ""

    def from_rank_0(self, value: Any) -> Any:
        """A small object (JSON-like) of rank 0's, on every rank."""
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self.control)
        return box[0]


def single_rank_environment() -> None:
    """Without torchrun: one rank."""
    if "RANK" not in os.environ:
        os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}


@contextmanager
def open_session(choice: places.Choice, **init_options: Any) -> Iterator[Session]:
    dist.init_process_group(choice.process_group_backend)
    try:
        control = dist.new_group(backend="gloo")
        assert control is not None
        communicator = llcoll.init(device=choice.device, **init_options)
        machine = tables.machine(choice.device.type, communicator.exchange("machine"))
        yield Session(
            choice.device,
            choice.words,
            dist.get_rank(),
            dist.get_world_size(),
            control,
            communicator,
            machine,
        )
        if choice.device.type == "cuda":
            torch.cuda.synchronize()
        dist.barrier(control)  # a peer may still store into our scratch
        llcoll.shutdown()
    finally:
        dist.destroy_process_group()
