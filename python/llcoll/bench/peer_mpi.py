"""MPI as a peer: a job of its own, since an MPI program starts under mpiexec. Rank 0 talks to it;
the others sleep in a barrier meanwhile. CPU, in place; the job is benchmarks/peer_worker.py."""

from __future__ import annotations

import importlib
import os
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from .contenders import Contender
from .forms import Cell, Form
from .session import Session

LIBRARIES = ("openmpi", "mpich")
DTYPES = {torch.float32: "float32"}
WARMUP = 2


class MpiForm(Form):
    def __init__(self, cell: Cell, peer: Mpi) -> None:
        super().__init__(cell, [], in_place=True)
        self.peer = peer

    def _block(self, num_calls: int, verify: bool) -> dict[str, Any]:
        """What rank 0 learnt from the job, on every rank."""
        answer: dict[str, Any] = {}
        if self.peer.job is not None:
            block = {
                "contender": self.peer.name,
                "dtype": DTYPES[self.cell.case.dtype],
                "bytes": self.cell.num_bytes,
                "verify": verify,
                "batches": 1,
                "per_batch": num_calls,
                "warmup": WARMUP,
            }
            try:
                answer = self.peer.job.run(block, self.peer.cpus)
            except Exception as error:  # every rank must hear of it
                answer = {"error": f"{type(error).__name__}: {error}"}
        answer = self.cell.session.from_rank_0(answer)
        if "error" in answer:
            raise RuntimeError(f"{self.peer.name}: {answer['error']}")
        return answer

    def check(self) -> int:
        wrong = int(self._block(1, verify=True)["wrong"])
        return wrong if self.cell.session.rank == 0 else 0

    def prepare(self) -> None:
        pass

    def run(self, num_calls: int) -> float:
        return float(self._block(num_calls, verify=False)["median"])

    def samples(self, num_calls: int) -> list[float]:
        return []


class Mpi(Contender):
    def __init__(self, name: str, job: Any, cpus: list[int], version: str) -> None:
        self.name, self.job, self.cpus, self.version = name, job, cpus, version

    def why_not(self, cell: Cell) -> str:
        if cell.case.op != "sum" or cell.case.dtype not in DTYPES:
            return "this peer has sums of float32"
        return ""

    def forms(self, cell: Cell) -> list[Form]:
        return [MpiForm(cell, self)]

    def close(self) -> None:
        if self.job is not None:
            self.job.close()


def _peer_jobs() -> Any:
    """benchmarks/peer_jobs.py of a source tree; None where llcoll was installed without one."""
    folder = Path(__file__).resolve().parents[3] / "benchmarks"
    if not (folder / "peer_jobs.py").exists():
        return None
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    return importlib.import_module("peer_jobs")


def make_mpi(session: Session, missing: type[Exception]) -> list[Contender]:
    """Open MPI and MPICH, where LLCOLL_BENCH_OPENMPI_PYTHON or ..._MPICH_PYTHON name the Python of
    an environment with mpi4py (docs/benchmarks.md)."""
    if session.is_cuda:
        raise missing("it reduces CPU memory")
    cpus = sorted(session.from_rank_0(sorted(os.sched_getaffinity(0))) or [0])
    every = [cpus[0]]
    for rank in range(1, session.world_size):
        own = session.slowest([float(min(os.sched_getaffinity(0)) if session.rank == rank else 0)])
        every.append(int(own[0]))
    jobs = _peer_jobs()
    if jobs is None:
        raise missing("it needs llcoll's source tree (benchmarks/peer_jobs.py)")
    reasons, made = [], []
    for name in LIBRARIES:
        python = os.environ.get(f"LLCOLL_BENCH_{name.upper()}_PYTHON")
        told: dict[str, str] = {}
        job = None
        if session.rank == 0:
            if not python:
                told["reason"] = f"LLCOLL_BENCH_{name.upper()}_PYTHON is not set"
            else:
                try:
                    job, told["version"] = _start(jobs, name, python, session.world_size)
                except Exception as error:
                    told["reason"] = f"{type(error).__name__}: {str(error)[:300]}"
        told = session.from_rank_0(told)
        if "reason" in told:
            reasons.append(f"{name}: {told['reason']}")
        else:
            made.append(Mpi(name, job, every, told["version"]))
    if not made:
        raise missing("; ".join(reasons))
    return list(made)


def _start(jobs: Any, name: str, python: str, num_ranks: int) -> tuple[Any, str]:
    with tempfile.TemporaryDirectory() as folder:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
            server.bind(f"{folder}/socket")
            server.listen(64)
            # The launcher must not inherit rank 0's place: the job's ranks pin themselves.
            job = jobs.start_mpi_job(name, python, num_ranks, Path(folder))
            try:
                job.connect(server, num_ranks)
            except BaseException:
                job.close()
                raise
    return job, job.versions.get(name, "")
