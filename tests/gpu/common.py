"""What the GPU programs share: start-up, parts that fail alike on every rank, checked calls.

These run under `python -m llcoll.loopback` or torchrun; pytest collects none of them.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import random
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch_reference
from torch_reference import FLOATS, bits, dtype_of

import llcoll

EXACT = ("one_shot_ll", "two_shot_ll", "one_shot_flag", "two_shot_flag", "auto")
SENTINEL = ("one_shot_sentinel", "two_shot_sentinel")
ALGORITHMS = (*EXACT, *SENTINEL)
POISON = 0x5B
POOL = (1 << 20) + 17 + 64  # elements of a pool of inputs
ops: Any = torch.ops.llcoll


def algorithms_for(dtype: str) -> tuple[str, ...]:
    return ALGORITHMS if dtype in FLOATS else EXACT


@dataclass
class World:
    args: argparse.Namespace
    rank: int
    size: int
    device: torch.device
    failures: list[str] = field(default_factory=list)
    pools: dict[tuple[str, int], Pool] = field(default_factory=dict)
    num_groups: int = 0

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    def say(self, text: str) -> None:
        if self.rank == 0:
            print(text, flush=True)

    def sync(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize()

    def delay(self, ms: float) -> None:
        """Of the current stream, and of nothing else."""
        if self.on_gpu:
            torch.cuda._sleep(int(ms * 1.7e6))
        else:
            time.sleep(ms / 1e3)

    def pool(self, name: str, numel: int) -> Pool:
        key = (name, numel)
        if key not in self.pools:
            self.pools[key] = Pool(name, numel, self)
        return self.pools[key]

    def group(self, *, first_epoch: int = 0, **options: Any) -> Any:
        """A group of all ranks with a communicator of its own."""
        group = dist.new_group(list(range(self.size)), timeout=timedelta(seconds=60))
        os.environ["LLCOLL_FIRST_EPOCH"] = str(first_epoch)
        try:
            llcoll.init(group, device=self.device.type, **{"timeout": self.args.wait, **options})
        finally:
            del os.environ["LLCOLL_FIRST_EPOCH"]
        return group

    def drop(self, group: Any) -> None:
        self.sync()
        dist.barrier()  # a peer may still store into our scratch
        llcoll.shutdown(group)

    def run(self, name: str, part: Callable[[World], Any]) -> None:
        """One part. It fails on every rank if it fails on one; then the communicator is rebuilt."""
        selected = self.args.parts
        if selected and not any(word in name for word in selected):
            return
        start = time.monotonic()
        text, note = "", ""
        try:
            note = str(part(self) or "")
            self.sync()
            llcoll.check()
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            if not isinstance(error, WrongBits):
                print(f"[rank {self.rank}] {name}\n{traceback.format_exc()}", flush=True)
        texts: list[Any] = [None] * self.size
        dist.all_gather_object(texts, text)
        bad = {rank: words for rank, words in enumerate(texts) if words}
        state = "ok" if not bad else f"FAILED on ranks {sorted(bad)}"
        self.say(f"  {name:<22} {state:<10} {time.monotonic() - start:6.1f} s  {note}")
        if bad:
            self.failures.append(name)
            for rank, words in list(bad.items())[:4]:
                self.say(f"    rank {rank}: {words[:1500]}")
            llcoll.shutdown()
            dist.barrier()
            llcoll.init(device=self.device.type, timeout=self.args.wait)


class WrongBits(AssertionError):
    pass


class Pool:
    """All ranks' inputs of one dtype, and what each operator makes of them.

    Any slice of the inputs has the same slice of the expected bits as its result.
    """

    def __init__(self, name: str, numel: int, world: World) -> None:
        self.name, self.numel = name, numel
        self.dtype = dtype_of(name)
        self.inputs = torch_reference.make_inputs(name, world.size, numel, 7, world.device)
        self.own = self.inputs[world.rank]
        self._expected: dict[str, torch.Tensor] = {}

    def expected(self, op: str) -> torch.Tensor:
        if op not in self._expected:
            self._expected[op] = torch_reference.all_reduce(op, self.inputs)
        return self._expected[op]


class Checks:
    """Counts wrong elements on the device: calls stay back to back; read at the end."""

    CAPACITY = 1 << 17

    def __init__(self, world: World) -> None:
        self.counts = torch.zeros(self.CAPACITY, dtype=torch.int64, device=world.device)
        self.labels: list[str] = []

    def compare(self, got: torch.Tensor, want_bits: torch.Tensor, label: str) -> None:
        idx = len(self.labels) % self.CAPACITY
        self.counts[idx] += (bits(got) != want_bits).sum()
        self.labels.append(label)

    def finish(self) -> str:
        counts = self.counts.cpu()
        bad = counts.nonzero().flatten().tolist()
        if bad:
            num_labels = len(self.labels)
            shown = [
                f"{self.labels[i]}: {int(counts[i])} wrong" for i in bad[:12] if i < num_labels
            ]
            raise WrongBits(f"{len(bad)} of {num_labels} results are wrong: " + "; ".join(shown))
        return f"{len(self.labels)} results"


def poisoned(numel: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    raw = torch.full((numel * dtype.itemsize,), POISON, dtype=torch.uint8, device=device)
    return raw.view(dtype) if dtype != torch.bool else raw.view(torch.bool)


class Caller:
    """Makes checked calls; how a rank hands its tensors over is its own affair (`own_rng`)."""

    def __init__(self, world: World, checks: Checks, seed: int, group_name: str = "") -> None:
        self.world, self.checks, self.group_name = world, checks, group_name
        self.own_rng = random.Random(seed * 131 + world.rank)

    def guarded(self, numel: int, dtype: torch.dtype, shift: int) -> tuple[torch.Tensor, ...]:
        """Poisoned memory with `numel` elements in its middle, `shift` elements off alignment."""
        margin = 16
        base = poisoned(numel + 2 * margin + shift, dtype, self.world.device)
        first = margin + shift
        return base, base[first : first + numel]

    def check_margins(self, base: torch.Tensor, view: torch.Tensor, label: str) -> None:
        first = view.storage_offset() - base.storage_offset()
        outside = torch.cat([bits(base[:first]), bits(base[first + view.numel() :])])
        want = bits(poisoned(1, base.dtype, self.world.device))
        self.checks.compare(outside, want.expand(outside.shape), f"{label} margins")

    def call(
        self, algorithm: str, pool: Pool, op: str, offset: int, numel: int, form: str = ""
    ) -> None:
        form = form or self.own_rng.choice(("fresh", "in_place", "into", "strided"))
        source = pool.own[offset : offset + numel]
        want = pool.expected(op)[offset : offset + numel]
        label = f"{algorithm} {pool.name} {op} [{offset}:+{numel}] {form}"
        name = self.group_name
        shift = self.own_rng.choice((0, 0, 1, 3, 8))
        if form == "fresh":
            # Freed at once, so that the result most likely lies in poison.
            poisoned(numel, pool.dtype, self.world.device)
            result = ops.all_reduce(source, op, name, algorithm=algorithm)
            self.checks.compare(result, want, label)
        elif form == "in_place":
            base, view = self.guarded(numel, pool.dtype, shift)
            bits(view).copy_(bits(source))
            ops.all_reduce_(view, op, name, algorithm=algorithm)
            self.checks.compare(view, want, label)
            self.check_margins(base, view, label)
        elif form == "into":
            base, view = self.guarded(numel, pool.dtype, shift)
            ops.all_reduce_out(source, op, name, algorithm=algorithm, out=view)
            self.checks.compare(view, want, label)
            self.check_margins(base, view, label)
        else:
            _, spread = self.guarded(2 * numel, pool.dtype, shift)
            view = spread[::2]
            bits(view).copy_(bits(source))
            result = ops.all_reduce(view, op, name, algorithm=algorithm)
            bits(view).fill_(POISON)  # the input is the caller's again
            self.checks.compare(result, want, label)


def parser(description: str | None) -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=description)
    result.add_argument("parts", nargs="*", help="run the parts whose name has one of these words")
    result.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    result.add_argument("--wait", type=float, default=20, help="seconds that a call waits")
    result.add_argument("--limit", type=float, default=300, help="seconds until stacks are printed")
    return result


def start(args: argparse.Namespace) -> World:
    faulthandler.enable()
    faulthandler.dump_traceback_later(args.limit, exit=True)
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    if args.device == "cuda":
        if not torch.cuda.is_available():
            sys.exit(f"no GPU for torch {torch.__version__}; --device cpu tries the program alone")
        device = torch.device("cuda", local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    else:
        device = torch.device("cpu")
        torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=90))
    world = World(args, dist.get_rank(), dist.get_world_size(), device)
    begin = time.monotonic()
    llcoll.init(device=device.type, timeout=args.wait)
    world.sync()
    name = torch.cuda.get_device_name(device) if world.on_gpu else "CPU"
    world.say(
        f"{os.path.basename(sys.argv[0])}: {world.size} ranks, {name}, torch {torch.__version__}, "
        f"init {time.monotonic() - begin:.1f} s"
    )
    return world


def run_parts(world: World, title: str, parts: Iterable[Callable[[World], Any]]) -> int:
    """All parts, one line of summary, and the exit status."""
    begin = time.monotonic()
    for part in parts:
        world.run(part.__name__, part)
    words = f"FAILED: {', '.join(world.failures)}" if world.failures else "all ok"
    world.say(f"{title}, {world.size} ranks: {words} ({time.monotonic() - begin:.0f} s)")
    return end(world)


def end(world: World) -> int:
    faulthandler.cancel_dump_traceback_later()
    world.sync()
    dist.barrier()
    llcoll.shutdown()
    dist.destroy_process_group()
    return 1 if world.failures else 0
