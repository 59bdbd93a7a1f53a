"""One rank of one job of the side-by-side CPU benchmark (cpu_peers.py starts it).

A job is a set of processes that run one library, or several under one torch. It connects to the
orchestrator's socket, says what it can run, then sleeps in a read until it is given a block: one
contender, type and size. So only one job at a time uses the cores. MPI jobs import no torch.

Messages are JSON, one a line. A block: {"contender", "dtype", "bytes", "batches", "per_batch",
"warmup", "cpu", "verify"}; its answer: {"batches": us a call in each, "wrong": elements that differ
from the exact result, "waited": share of the time spent runnable but without a core,
"speeds_ns": time of a fixed piece of work before and after} or {"error": text}.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import repeat
from typing import Any

ITEM_BYTES = {"float32": 4, "bfloat16": 2}
Call = Callable[[], Any]
Cache = dict[Any, tuple[Call, Any]]


class Job:
    """What a job offers: `contenders` maps a name to None, or to why it cannot run here."""

    rank: int
    contenders: dict[str, str | None]
    versions: dict[str, str]

    def prepare(self, contender: str, dtype: str, num_bytes: int) -> tuple[Call, Any]:
        """A call without arguments that reduces a buffer in place, and that buffer."""
        raise NotImplementedError

    def fill(self, buffer: Any, dtype: str, zero: bool) -> None:
        raise NotImplementedError

    def count_wrong(self, buffer: Any, dtype: str) -> int:
        raise NotImplementedError

    def barrier(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


class MpiJob(Job):
    """MPI has no bfloat16: uint16 stands in, of the same size and cheaper to add."""

    def __init__(self, name: str) -> None:
        self.np: Any = importlib.import_module("numpy")
        self.mpi: Any = importlib.import_module("mpi4py.MPI")
        self.comm = self.mpi.COMM_WORLD
        self.rank, self.size = self.comm.rank, self.comm.size
        self.name = name
        self.contenders = {name: None, f"{name}_persistent": None}
        library = self.mpi.Get_library_version().splitlines()[0].split(",")[0]
        self.versions = {name: " ".join(library.split()).rstrip("\0")}
        if not hasattr(self.comm, "Allreduce_init"):
            self.contenders[f"{name}_persistent"] = "no Allreduce_init in this mpi4py"

    def prepare(self, contender: str, dtype: str, num_bytes: int) -> tuple[Call, Any]:
        mpi = self.mpi
        type_name, mpi_type = {
            "float32": ("float32", mpi.FLOAT),
            "bfloat16": ("uint16", mpi.UINT16_T),
        }[dtype]
        count = num_bytes // ITEM_BYTES[dtype]
        buffer = self.np.zeros(count, dtype=type_name)
        spec = [mpi.buffer(buffer), count, mpi_type]
        if contender == self.name:
            return partial(self.comm.Allreduce, mpi.IN_PLACE, spec, mpi.SUM), buffer
        request = self.comm.Allreduce_init(mpi.IN_PLACE, spec, mpi.SUM)

        def run() -> None:
            request.Start()
            request.Wait()

        return run, buffer

    def _pattern(self, buffer: Any, rank: int) -> Any:
        return ((self.np.arange(buffer.size) * 3 + rank * 5) % 17).astype(buffer.dtype)

    def fill(self, buffer: Any, dtype: str, zero: bool) -> None:
        buffer[:] = 0 if zero else self._pattern(buffer, self.rank)

    def count_wrong(self, buffer: Any, dtype: str) -> int:
        expected = sum(self._pattern(buffer, rank) for rank in range(self.size))
        return int((buffer != expected).sum())

    def barrier(self) -> None:
        self.comm.Barrier()

    def close(self) -> None:
        self.mpi.Finalize()


class TorchJob(Job):
    """llcoll, llcoll.plan and Gloo in one job, or vLLM's shared-memory all-reduce in its own."""

    def __init__(self, rendezvous: str, vllm_lib: str | None, wanted: list[str]) -> None:
        self.torch: Any = importlib.import_module("torch")
        self.dist: Any = importlib.import_module("torch.distributed")
        self.torch.set_num_threads(1)
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.dist.init_process_group(
            "gloo", init_method=f"file://{rendezvous}", rank=self.rank, world_size=self.size
        )
        self.vllm_lib = vllm_lib
        self.contenders = {name: self._try_start(name) for name in wanted}
        self.versions = {"torch": self.torch.__version__}

    def _try_start(self, name: str) -> str | None:
        try:
            if name.startswith("llcoll"):
                self.llcoll: Any = importlib.import_module("llcoll")
                self.llcoll.init()
            elif name == "vllm":
                self._start_vllm()
        except Exception as error:  # any reason is a reason to skip, and is shown
            return f"{type(error).__name__}: {error}"
        return None

    def _start_vllm(self) -> None:
        with open("/proc/cpuinfo", encoding="utf-8") as cpuinfo:
            if "avx512bw" not in cpuinfo.read():
                raise RuntimeError("this CPU has no AVX-512")
        if not self.vllm_lib:
            raise RuntimeError("no --vllm-lib")
        self.torch.ops.load_library(self.vllm_lib)
        self.vllm: Any = self.torch.ops._C
        names = [f"llcoll-bench-{os.getpid()}"]
        self.dist.broadcast_object_list(names, src=0)
        self.handle = self.vllm.init_shm_manager(names[0], self.size, self.rank, 1)
        self.dist.barrier()
        self.vllm.join_shm_manager(self.handle, names[0])
        self.dist.barrier()

    def prepare(self, contender: str, dtype: str, num_bytes: int) -> tuple[Call, Any]:
        count = num_bytes // ITEM_BYTES[dtype]
        buffer = self.torch.zeros(count, dtype=getattr(self.torch, dtype))
        if contender == "llcoll":
            return partial(self.llcoll.all_reduce_, buffer), buffer
        if contender == "llcoll_op":
            return partial(self.torch.ops.llcoll.all_reduce_.default, buffer), buffer
        if contender == "llcoll_plan":
            return self.llcoll.plan(buffer), buffer
        if contender == "vllm":
            return partial(self.vllm.shm_allreduce.default, self.handle, buffer), buffer
        return partial(self.dist.all_reduce, buffer), buffer

    def _pattern(self, buffer: Any, rank: int) -> Any:
        values = (self.torch.arange(buffer.numel()) * 3 + rank * 5) % 17
        return values.to(buffer.dtype)

    def fill(self, buffer: Any, dtype: str, zero: bool) -> None:
        buffer.zero_() if zero else buffer.copy_(self._pattern(buffer, self.rank))

    def count_wrong(self, buffer: Any, dtype: str) -> int:
        expected = sum(self._pattern(buffer, rank).float() for rank in range(self.size))
        return int((buffer.float() != expected).sum())

    def barrier(self) -> None:
        self.dist.barrier()

    def close(self) -> None:
        if hasattr(self, "llcoll"):
            self.llcoll.shutdown()
        self.dist.destroy_process_group()


def core_wait_ns() -> int:
    """Time that this thread was runnable without running; 0 where the kernel does not tell."""
    try:
        with open("/proc/self/schedstat", encoding="ascii") as schedstat:
            return int(schedstat.read().split()[1])
    except OSError:
        return 0


def core_speed_ns() -> int:
    """Time of a fixed piece of interpreter work. Like a dispatcher's, its instructions do not fit
    the first-level cache: it takes up to twice as long while the host's other work crowds the core.
    """
    times = []
    for _ in range(5):
        start = time.perf_counter_ns()
        for _ in repeat(None, 10):
            json.loads(json.dumps({"a": [1, 2.5, "x"], "b": {"c": None, "d": [True] * 8}}))
        times.append(time.perf_counter_ns() - start)
    return sorted(times)[2]


def run_block(job: Job, block: dict[str, Any], cache: Cache) -> dict[str, Any]:
    os.sched_setaffinity(0, {block["cpu"]})
    key = (block["contender"], block["dtype"], block["bytes"])
    if key not in cache:
        cache[key] = job.prepare(*key)
    call, buffer = cache[key]
    answer: dict[str, Any] = {}
    if block["verify"]:
        job.fill(buffer, block["dtype"], zero=False)
        call()
        answer["wrong"] = job.count_wrong(buffer, block["dtype"])
    # Sums of zeros stay zeros, however often the buffer is reduced in place.
    job.fill(buffer, block["dtype"], zero=True)
    speeds_ns = [core_speed_ns()]
    job.barrier()
    for _ in repeat(None, block["warmup"]):
        call()
    per_batch = block["per_batch"]
    batches = []
    gc.disable()
    waited_ns, begin_ns = core_wait_ns(), time.perf_counter_ns()
    for _ in range(block["batches"]):
        start = time.perf_counter_ns()
        for _ in repeat(None, per_batch):
            call()
        batches.append((time.perf_counter_ns() - start) / per_batch / 1000)
    gc.enable()
    took_ns = time.perf_counter_ns() - begin_ns
    answer["waited"] = (core_wait_ns() - waited_ns) / took_ns
    answer["batches"] = batches
    answer["speeds_ns"] = [*speeds_ns, core_speed_ns()]
    return answer


def make_job(args: argparse.Namespace) -> Job:
    if args.job in ("openmpi", "mpich"):
        return MpiJob(args.job)
    return TorchJob(args.rendezvous, args.vllm_lib, args.contenders.split(","))


def main(make_job: Callable[[argparse.Namespace], Job] = make_job) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--job", required=True)
    parser.add_argument("--socket", required=True)
    parser.add_argument("--rendezvous", default="")
    parser.add_argument("--contenders", default="")
    parser.add_argument("--vllm-lib")
    args = parser.parse_args()
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    link.connect(args.socket)
    stream = link.makefile("rw", encoding="utf-8")

    def say(message: dict[str, Any]) -> None:
        stream.write(json.dumps(message) + "\n")
        stream.flush()

    job = make_job(args)
    say(
        {
            "job": args.job,
            "rank": job.rank,
            "contenders": job.contenders,
            "versions": job.versions,
        }
    )
    cache: Cache = {}
    for line in stream:
        try:
            say(run_block(job, json.loads(line), cache))
        except Exception as error:  # the orchestrator drops the contender and says why
            say({"error": f"{type(error).__name__}: {error}"})
    cache.clear()
    job.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
