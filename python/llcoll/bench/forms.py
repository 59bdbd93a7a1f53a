"""What is timed: a form is one contender's all-reduce of one size, in place or out of place."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import cycle, islice

import torch

import llcoll

from .. import _C, _ops
from .cases import Case, num_wrong
from .session import Session

Call = Callable[[], object]
Arguments = tuple[int, int, int, str, str, str]  # of _C.repeat, between the group and the counts
MAX_BUFFERS = 4
BUFFER_BUDGET = 256 << 20
SYMMETRIC_BUDGET = 40 << 20  # of a pool of 64 MiB
# Buffers start on different cache sets and pages, so that none has a lucky place.
SHIFT_BYTES = 4096 + 256
CALLS_PER_GRAPH = 50
PAUSE_CYCLES = 120_000  # hides a graph's launch


@dataclass
class Cell:
    """One size: what every contender reduces there."""

    session: Session
    case: Case
    numel: int
    mode: str
    calls_per_graph: int = CALLS_PER_GRAPH
    symmetric: bool = False  # buffers of llcoll.empty
    inputs: list[torch.Tensor] = field(default_factory=list)
    outs: list[torch.Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        budget = SYMMETRIC_BUDGET if self.symmetric else BUFFER_BUDGET
        count = max(1, min(MAX_BUFFERS, budget // (2 * self.num_bytes)))
        self.inputs, self.outs = self.make_buffers(count), self.make_buffers(count)

    @property
    def num_bytes(self) -> int:
        return self.numel * self.case.dtype.itemsize

    def make_buffers(self, count: int) -> list[torch.Tensor]:
        stride = self.num_bytes + SHIFT_BYTES
        empty = llcoll.empty if self.symmetric else torch.empty
        pool = empty(count * stride + 256, dtype=torch.uint8, device=self.session.device).zero_()
        first = -pool.data_ptr() % 256
        starts = [first + (idx * stride + 255) // 256 * 256 for idx in range(count)]
        return [pool[start : start + self.num_bytes].view(self.case.dtype) for start in starts]

    def dtype_name(self) -> str:
        return str(self.case.dtype).removeprefix("torch.")


class Form:
    """`calls[i]` reduces `cell.inputs[i]`: in place, into what it returns, or into cell.outs[i]."""

    def __init__(
        self,
        cell: Cell,
        calls: list[Call],
        in_place: bool,
        inputs: list[torch.Tensor] | None = None,
    ) -> None:
        self.cell, self.calls, self.in_place = cell, calls, in_place
        self.inputs = cell.inputs if inputs is None else inputs  # those of the contender's own
        self._graph: torch.cuda.CUDAGraph | None = None
        self._stream: torch.cuda.Stream | None = None
        self._gate: torch.Tensor | None = None

    def check(self) -> int:
        """This rank's elements with a wrong bit; an input that changed counts too."""
        cell = self.cell
        own = cell.case.input(cell.numel, cell.session.rank)
        want = cell.case.expected(cell.numel)
        wrong = 0
        for idx in sorted({0, len(self.calls) - 1}):
            self.inputs[idx].copy_(own)
            result = self.calls[idx]()
            cell.session.synchronize()
            if self.in_place:
                wrong += num_wrong(self.inputs[idx], want)
                continue
            got = result if isinstance(result, torch.Tensor) else cell.outs[idx]
            wrong += num_wrong(got, want) + num_wrong(self.inputs[idx], own)
        return wrong

    def prepare(self) -> None:
        """After the check: inputs that stay as they are, and the graph."""
        for tensor in self.inputs:
            tensor.copy_(torch.full((self.cell.numel,), self.cell.case.fixed_point))
        if self.cell.mode == "graph":
            self._capture()

    def _capture(self) -> None:
        self._stream = torch.cuda.Stream()
        self._gate = torch.ones(16, device=self.cell.session.device)
        with torch.cuda.stream(self._stream):
            for call in self.calls:
                call()
        self._stream.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, stream=self._stream):
            for call in islice(cycle(self.calls), self.cell.calls_per_graph):
                call()

    def close(self) -> None:
        self._graph = None
        self.calls = []

    def run(self, num_calls: int) -> float:
        """us per call on this rank. A graph runs once, however many calls were asked for."""
        if self._graph is not None:
            return self._replay()
        if self.cell.session.is_cuda:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for call in islice(cycle(self.calls), num_calls):
                call()
            end.record()
            end.synchronize()
            return begin.elapsed_time(end) * 1e3 / num_calls
        start = time.perf_counter_ns()
        for call in islice(cycle(self.calls), num_calls):
            call()
        return (time.perf_counter_ns() - start) / 1e3 / num_calls

    def _replay(self) -> float:
        assert self._graph is not None and self._gate is not None
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.stream(self._stream):
            _ops.ops.all_reduce_.default(self._gate)  # the ranks start together
            torch.cuda._sleep(PAUSE_CYCLES)
            begin.record()
            self._graph.replay()
            end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e3 / self.cell.calls_per_graph

    def samples(self, num_calls: int) -> list[float]:
        """us of single calls, for percentiles; empty where single calls cannot be timed."""
        if self.cell.session.is_cuda:
            return []
        clock = time.perf_counter_ns
        times = []
        for call in islice(cycle(self.calls), num_calls):
            start = clock()
            call()
            times.append(clock() - start)
        overhead = min(-(clock() - clock()) for _ in range(50))
        return [max(0, ns - overhead) / 1e3 for ns in times]


class CpuRepeatForm(Form):
    """--mode in-kernel on the CPU: the exchange alone, called again and again without Python."""

    def __init__(self, cell: Cell, algorithm: str, in_place: bool) -> None:
        targets = cell.inputs if in_place else cell.outs
        self._arguments = [
            (x.data_ptr(), y.data_ptr(), cell.numel, cell.dtype_name(), cell.case.op, algorithm)
            for x, y in zip(cell.inputs, targets, strict=True)
        ]
        self._turn = 0
        calls: list[Call] = [
            (lambda one=one: self._repeat(one, 1, 1))  # type: ignore[misc]
            for one in self._arguments
        ]
        super().__init__(cell, calls, in_place)

    def _repeat(self, arguments: Arguments, num_calls: int, num_batches: int) -> list[float]:
        name = self.cell.session.communicator.group_name
        return _C.repeat(name, *arguments, num_calls, num_batches)

    def run(self, num_calls: int) -> float:
        self._turn += 1
        return self._repeat(self._arguments[self._turn % len(self._arguments)], num_calls, 1)[0]

    def samples(self, num_calls: int) -> list[float]:
        return self._repeat(self._arguments[0], 1, num_calls)


class CudaRepeatForm(Form):
    """--mode in-kernel on CUDA: many all-reduces inside one launch, each of the one before's."""

    LEAST_ITERATIONS = 1000

    def __init__(self, cell: Cell, algorithm: str) -> None:
        self._algorithm = algorithm
        self._turn = 0
        calls: list[Call] = [
            (lambda x=x: self._repeat(x, 1))  # type: ignore[misc]
            for x in cell.inputs
        ]
        super().__init__(cell, calls, in_place=True)

    def _repeat(self, tensor: torch.Tensor, iterations: int) -> float:
        torch.cuda.synchronize()  # it runs on a stream of its own
        return _ops.backend("cuda").repeat_in_kernel(
            self.cell.session.communicator.group_name,
            tensor.data_ptr(),
            self.cell.num_bytes,
            self._algorithm,
            iterations,
        )

    def run(self, num_calls: int) -> float:
        self._turn += 1
        turn = self._turn % len(self.inputs)
        return self._repeat(self.inputs[turn], max(num_calls, self.LEAST_ITERATIONS))
