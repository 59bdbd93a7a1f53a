"""What ranks do in the all-reduce tests: run cases, compare bits, return the mismatches."""

from __future__ import annotations

import os
import time
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from jobs import State, synchronize

import llcoll

POISON = 0x5A
MAX_REPORTS = 8


class Case(NamedTuple):
    algorithm: str
    dtype: str
    op: str
    numel: int
    offset: int  # into the prepared inputs, so that neighbouring calls carry different data


def as_integers(tensor: torch.Tensor) -> torch.Tensor:
    integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.view(integer[tensor.element_size()])


def bits_of(tensor: torch.Tensor) -> torch.Tensor:
    return as_integers(tensor.contiguous()).reshape(-1)


def from_bits(bits: np.ndarray, dtype: str, device: str) -> torch.Tensor:
    signed = np.array(bits).view("u1" if bits.itemsize == 1 else f"i{bits.itemsize}")
    return torch.from_numpy(signed).view(getattr(torch, dtype)).to(device)


class Prepared:
    """This rank's rows and the expected results, read from the files that the test wrote."""

    def __init__(self, directory: str, rank: int, device: str) -> None:
        self.directory, self.rank, self.device = directory, rank, device
        self.tensors: dict[str, torch.Tensor] = {}

    def _load(self, name: str, dtype: str, row: int | None) -> torch.Tensor:
        if name not in self.tensors:
            stored = np.load(os.path.join(self.directory, name + ".npy"), mmap_mode="r")
            self.tensors[name] = from_bits(
                stored if row is None else stored[row], dtype, self.device
            )
        return self.tensors[name]

    def input(self, case: Case) -> torch.Tensor:
        whole = self._load(f"in.{case.dtype}", case.dtype, self.rank)
        return whole[case.offset : case.offset + case.numel]

    def expected(self, case: Case) -> torch.Tensor:
        whole = self._load(f"{case.op}.{case.dtype}", case.dtype, None)
        return whole[case.offset : case.offset + case.numel]


def poison(tensor: torch.Tensor) -> torch.Tensor:
    """Fills a fresh tensor with bytes that no expected result consists of."""
    tensor.view(torch.uint8).fill_(1 if tensor.dtype == torch.bool else POISON)
    return tensor


def lay_out(numel: int, dtype: torch.dtype, device: str, layout: int) -> torch.Tensor:
    """An uninitialised tensor: 0 contiguous, 1 off by odd elements, 2 strided or transposed."""
    if layout == 0 or numel == 0:
        return poison(torch.empty(numel, dtype=dtype, device=device))
    if layout == 1:
        shift = 1 + numel % 3
        return poison(torch.empty(numel + shift, dtype=dtype, device=device))[shift:]
    if numel % 3 == 0:
        return poison(torch.empty(numel, dtype=dtype, device=device)).view(3, numel // 3).t()
    return poison(torch.empty(2 * numel, dtype=dtype, device=device))[::2]


def differs(got: torch.Tensor, want: torch.Tensor) -> str:
    got_bits, want_bits = bits_of(got), bits_of(want)
    if torch.equal(got_bits, want_bits):
        return ""
    wrong = (got_bits != want_bits).nonzero().reshape(-1)
    mask = (1 << (8 * got.element_size())) - 1
    shown = ", ".join(
        f"[{i}] {int(got_bits[i]) & mask:#x} not {int(want_bits[i]) & mask:#x}"
        for i in wrong[:3].tolist()
    )
    return f"{wrong.numel()} of {got_bits.numel()} differ: {shown}"


def run_case(prepared: Prepared, case: Case, style: int, group_name: str = "") -> str:
    """One call; returns "" or what is wrong.

    The style (27 of them: layout of input, entry point, layout of output) may differ between ranks.
    """
    source, want = prepared.input(case), prepared.expected(case)
    layout, entry = style % 3, style // 3 % 3
    x = lay_out(case.numel, source.dtype, prepared.device, layout)
    x.copy_(source.view(x.shape))
    args, kwargs = (case.op, group_name), {"algorithm": case.algorithm}
    if entry == 0:
        got = torch.ops.llcoll.all_reduce(x, *args, **kwargs)
        if got.numel() and got.untyped_storage().data_ptr() == x.untyped_storage().data_ptr():
            return "the functional result shares the input's storage"
    elif entry == 1:
        torch.ops.llcoll.all_reduce_(x, *args, **kwargs)
        got = x
    else:
        got = lay_out(case.numel, source.dtype, prepared.device, (layout + style // 9) % 3)
        got = got if got.shape == x.shape else got.reshape(x.shape)
        torch.ops.llcoll.all_reduce_out(x, *args, **kwargs, out=got)
    if got.shape != x.shape or got.dtype != x.dtype:
        return f"shape {tuple(got.shape)} dtype {got.dtype}, input {tuple(x.shape)} {x.dtype}"
    if entry != 1:
        if style % 2:  # the peers must not see what becomes of the input once the call is over
            as_integers(x).fill_(1)
        elif touched := differs(x, source):
            return f"the input changed: {touched}"
    return differs(got, want)


def run_cases(
    state: State,
    directory: str,
    cases: list[Case],
    *,
    slow_rank: int = -1,
    flush_denormal_rank: int = -1,
    group_name: str = "",
    rank: int | None = None,
    budget: float = 1e9,
) -> tuple[int, list[str]]:
    """Runs the cases in order; how many were wrong, and the first few in words."""
    rank = state["rank"] if rank is None else rank
    prepared = Prepared(directory, rank, state["device"])
    reports: list[str] = []
    num_wrong = 0
    flush = flush_denormal_rank == state["rank"]
    if flush:
        torch.set_flush_denormal(True)
    try:
        for idx, case in enumerate(cases):
            if slow_rank == state["rank"] and idx % 5 == 0:
                time.sleep((idx % 3) * 1e-3)
            style = (7 * idx + 4 * rank) % 27
            try:
                wrong = run_case(prepared, Case(*case), style, group_name)
            except RuntimeError as error:
                wrong = f"{type(error).__name__}: {error}"
            if wrong:
                num_wrong += 1
                if len(reports) < MAX_REPORTS:
                    reports.append(f"call {idx} {tuple(case)} style {style} rank {rank}: {wrong}")
                if "CollectiveTimeout" in wrong or "CollectiveAborted" in wrong:
                    break
        synchronize(state)
    finally:
        if flush:
            torch.set_flush_denormal(False)
    return num_wrong, reports


def make_group(state: State, name: str, ranks: list[int], **options: Any) -> bool:
    """A sub-group with its own communicator, kept in `state`; every rank of the world calls this.

    The option `first_epoch` starts its counters there.
    """
    group = dist.new_group(ranks)
    if state["rank"] in ranks:
        first_epoch = options.pop("first_epoch", 0)
        os.environ["LLCOLL_FIRST_EPOCH"] = str(first_epoch)
        try:
            llcoll.init(group, device=state["device"], **options)
        finally:
            del os.environ["LLCOLL_FIRST_EPOCH"]
        state[name] = group
    return state["rank"] in ranks


def drop_group(state: State, name: str) -> None:
    group = state.pop(name, None)
    if group is not None:
        llcoll.shutdown(group)
        dist.destroy_process_group(group)


def run_cases_in_group(
    state: State,
    name: str,
    options: dict[str, Any],
    directory: str,
    cases: list[Case],
    **kwargs: Any,
) -> tuple[int, list[str]]:
    """As run_cases, in a fresh communicator over all ranks made with `options`."""
    make_group(state, name, list(range(state["world_size"])), **options)
    try:
        return run_cases(state, directory, cases, group_name=state[name].group_name, **kwargs)
    finally:
        drop_group(state, name)
