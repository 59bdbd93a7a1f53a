"""The main job: `torchrun --nproc-per-node 2 -m llcoll.bench [flags]`.

Flags and table follow nccl-tests. Every size is checked first, in place and out of place, with
inputs whose result is exact in the tensor's type: a single wrong bit makes the exit status 1.
Times are the slowest rank's: the median over batches of the mean time of a call.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist

import llcoll
from llcoll import _bench_device as bench_device

TYPES = {
    "float": torch.float32,
    "double": torch.float64,
    "half": torch.float16,
    "bfloat16": torch.bfloat16,
    "fp8e4m3": torch.float8_e4m3fn,
    "fp8e5m2": torch.float8_e5m2,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "int32": torch.int32,
    "int64": torch.int64,
}
TYPES |= {str(dtype).removeprefix("torch."): dtype for dtype in TYPES.values()}
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
NUM_BATCHES = 5
HEAD = """\
#                                                 out-of-place                    in-place
#      size       count     type  redop     time  algbw  busbw #wrong     time  algbw  busbw #wrong
#       (B)  (elements)                     (us) (GB/s) (GB/s)            (us) (GB/s) (GB/s)"""

Call = Callable[[], object]


def parse_size(text: str) -> int:
    """8, 64K, 1M, 2G."""
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    number, unit = (text[:-1], text[-1].upper()) if text[-1:].isalpha() else (text, "")
    if not number.isdigit() or unit not in ("", *units):
        raise argparse.ArgumentTypeError(f"{text!r} is not a size like 8, 64K or 16M")
    return int(number) * units.get(unit, 1)


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("llcoll.bench", description=__doc__)
    parser.add_argument("-b", "--minbytes", type=parse_size, default=8)
    parser.add_argument("-e", "--maxbytes", type=parse_size, default=16 << 20)
    parser.add_argument("-f", "--stepfactor", type=int, default=2)
    parser.add_argument("-n", "--iters", type=int, default=200, help="timed calls per size")
    parser.add_argument("-w", "--warmup_iters", type=int, default=20)
    parser.add_argument("-c", "--check", type=int, choices=(0, 1), default=1)
    parser.add_argument("-o", "--op", choices=("sum", "avg", "max", "min", "prod"), default="sum")
    parser.add_argument("-d", "--datatype", choices=sorted(TYPES), default="float")
    parser.add_argument("--algorithm", default="auto")
    parser.add_argument("--mode", choices=("eager", "graph", "plan"), default="eager")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--no-pin", action="store_true", help="CPU: leave ranks to the scheduler")
    args = parser.parse_args(argv)
    for name, least in (("stepfactor", 2), ("iters", 1), ("warmup_iters", 0), ("minbytes", 1)):
        if getattr(args, name) < least:
            parser.error(f"--{name} {getattr(args, name)} is below {least}")
    return args


def sizes(args: argparse.Namespace) -> list[int]:
    """Bytes, each a multiple of the element size."""
    item_bytes = TYPES[args.datatype].itemsize
    result: list[int] = []
    num_bytes = args.minbytes
    while num_bytes <= args.maxbytes:
        rounded = max(num_bytes // item_bytes, 1) * item_bytes
        if not result or rounded > result[-1]:
            result.append(rounded)
        num_bytes *= args.stepfactor
    return result


def pattern(numel: int, rank: int, args: argparse.Namespace) -> torch.Tensor:
    """Float64 on the CPU. Small integers: sums and products are exact in the accumulator, and one
    rounding to the tensor's type remains, which is the same for every correct implementation."""
    idx = torch.arange(numel)
    if args.op == "prod":
        return 1.0 + ((idx + rank) % 8 == 0).double()
    limit = 2 if TYPES[args.datatype].itemsize == 1 and args.op in ("sum", "avg") else 13
    return ((idx * (rank + 3) + idx // 5 + rank) % limit).double()


def expected(numel: int, world_size: int, args: argparse.Namespace) -> torch.Tensor:
    inputs = [pattern(numel, rank, args) for rank in range(world_size)]
    result = inputs[0]
    for value in inputs[1:]:
        if args.op in ("sum", "avg"):
            result = result + value
        elif args.op == "prod":
            result = result * value
        else:
            result = (torch.maximum if args.op == "max" else torch.minimum)(result, value)
    dtype = TYPES[args.datatype]
    if args.op == "avg":
        # One division in the accumulator's type; integers truncate toward zero.
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        result = result.to(wide) / world_size
        if not dtype.is_floating_point:
            result = result.trunc()
    return result.float().to(dtype) if dtype.itemsize == 1 else result.to(dtype)


def num_wrong(got: torch.Tensor, want: torch.Tensor) -> int:
    bits = BITS[got.element_size()]
    return int((got.cpu().view(bits) != want.view(bits)).sum())


@dataclass
class Bench:
    args: argparse.Namespace
    device: torch.device
    rank: int
    world_size: int
    control: dist.ProcessGroup  # a Gloo group: figures travel outside what is measured

    def calls(self, buffer: torch.Tensor, out: torch.Tensor) -> tuple[Call, Call]:
        """Out of place, in place; without arguments. What graph mode captures is eager."""
        args, ops = self.args, torch.ops.llcoll
        if args.mode == "plan":
            return (
                llcoll.plan(buffer, args.op, algorithm=args.algorithm, out=out),
                llcoll.plan(buffer, args.op, algorithm=args.algorithm),
            )
        # Arguments left at their defaults cost the dispatcher nothing.
        given = {} if args.algorithm == "auto" else {"algorithm": args.algorithm}
        op = () if args.op == "sum" else (args.op,)
        in_place = partial(ops.all_reduce_.default, buffer, *op, **given)
        if args.mode == "graph":
            return partial(ops.all_reduce_out.default, buffer, *op, out=out, **given), in_place
        return partial(ops.all_reduce.default, buffer, *op, **given), in_place

    def capture(self, call: Call) -> Call:
        """One graph of `calls_per_run` calls."""
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            call()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(self.calls_per_run):
                call()
        return graph.replay

    @property
    def calls_per_run(self) -> int:
        return 10 if self.args.mode == "graph" else 1

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def check(
        self, calls: tuple[Call, Call], buffer: torch.Tensor, out: torch.Tensor
    ) -> tuple[int, int]:
        """Elements with a wrong bit, over all ranks. An input that changed counts too."""
        want = expected(buffer.numel(), self.world_size, self.args)
        fill = pattern(buffer.numel(), self.rank, self.args).float().to(buffer.dtype)
        buffer.copy_(fill)
        result = calls[0]()
        self.synchronize()
        fresh = result if isinstance(result, torch.Tensor) else out
        wrong_out = num_wrong(fresh, want) + num_wrong(buffer, fill)
        calls[1]()
        self.synchronize()
        totals = torch.tensor([wrong_out, num_wrong(buffer, want)])
        dist.all_reduce(totals, group=self.control)
        return int(totals[0]), int(totals[1])

    def batch_us(self, call: Call, num_runs: int) -> float:
        if self.device.type == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(num_runs):
                call()
            end.record()
            end.synchronize()
            return begin.elapsed_time(end) * 1e3 / num_runs
        start = time.perf_counter()
        for _ in range(num_runs):
            call()
        return (time.perf_counter() - start) * 1e6 / num_runs

    def time_us(self, call: Call) -> float:
        num_runs = max(1, self.args.iters // NUM_BATCHES // self.calls_per_run)
        dist.barrier(self.control)
        # One call more than asked for: ranks leave the barrier at different times.
        for _ in range(self.args.warmup_iters // self.calls_per_run + 1):
            call()
        self.synchronize()
        batches = [self.batch_us(call, num_runs) for _ in range(NUM_BATCHES)]
        slowest = torch.tensor(statistics.median(batches) / self.calls_per_run)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX, group=self.control)
        return float(slowest)

    def run_size(self, num_bytes: int) -> tuple[str, list[float], int]:
        """A row of the table, its two bus bandwidths, its wrong elements."""
        dtype = TYPES[self.args.datatype]
        numel = num_bytes // dtype.itemsize
        buffer = torch.zeros(numel, dtype=torch.uint8, device=self.device).to(dtype)
        out = torch.empty_like(buffer)
        calls = self.calls(buffer, out)
        wrong = self.check(calls, buffer, out) if self.args.check else (-1, -1)
        # Fixed points of every operator: timed calls in place neither overflow nor change.
        buffer.copy_(torch.full((numel,), float(self.args.op == "prod"), device=self.device))
        row = f"{num_bytes:>11} {numel:>11} {self.args.datatype:>8} {self.args.op:>6}"
        busbws = []
        for call, bad in zip(calls, wrong, strict=True):
            timed = self.capture(call) if self.args.mode == "graph" else call
            us = self.time_us(timed)
            algbw = num_bytes / us / 1e3
            busbws.append(algbw * 2 * (self.world_size - 1) / self.world_size)
            row += f" {us:>8.2f} {algbw:>6.2f} {busbws[-1]:>6.2f} {bad if bad >= 0 else 'N/A':>6}"
        return row, busbws, sum(max(bad, 0) for bad in wrong)


def run(args: argparse.Namespace, choice: bench_device.Choice) -> int:
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group(choice.process_group_backend)
    say = print if rank == 0 else (lambda *_args, **_kwargs: None)
    status = 1
    try:
        control = dist.new_group(backend="gloo")
        assert control is not None
        llcoll.init(device=choice.device)
        bench = Bench(args, choice.device, rank, world_size, control)
        say(f"# llcoll {llcoll.__version__}, torch {torch.__version__}, {world_size} ranks")
        say(f"# backend: {choice.words}")
        say(
            f"# minbytes {args.minbytes} maxbytes {args.maxbytes} step factor {args.stepfactor} "
            f"iters {args.iters} warmup {args.warmup_iters} check {args.check} "
            f"mode {args.mode} algorithm {args.algorithm}\n#"
        )
        say(HEAD)
        bandwidths: list[float] = []
        total_wrong = 0
        for num_bytes in sizes(args):
            row, busbws, wrong = bench.run_size(num_bytes)
            say(row, flush=True)
            bandwidths += busbws
            total_wrong += wrong
        average = statistics.fmean(bandwidths) if bandwidths else 0.0
        words = "not checked" if not args.check else "OK" if not total_wrong else "FAILED"
        say(f"# Out of bounds values : {total_wrong} {words}")
        say(f"# Avg bus bandwidth    : {average:.6g}")
        say(f"# Backend              : {choice.words}")
        status = 1 if total_wrong else 0
        llcoll.shutdown()
    finally:
        dist.destroy_process_group()
    return status


def main(argv: list[str] | None = None) -> int:
    args = parse_args(argv)
    if "RANK" not in os.environ:
        os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    choice = bench_device.choose(args, sys.argv[1:] if argv is None else argv)
    if isinstance(choice, int):
        return choice
    return run(args, choice)


if __name__ == "__main__":
    sys.exit(main())
