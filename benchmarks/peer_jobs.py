"""Starts the jobs of cpu_peers.py and talks to their ranks. Kills only what it started."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
START_TIMEOUT_S = 90.0
BLOCK_TIMEOUT_S = 120.0


class JobFailed(Exception):
    pass


class PingPong:
    """The cache-line latency between two CPUs, from a helper compiled into `folder`."""

    def __init__(self, folder: Path, cpus: list[int]) -> None:
        binary = folder / "pingpong"
        source = HERE / "pingpong.cpp"
        subprocess.run(
            ["g++", "-O2", "-std=c++20", "-pthread", str(source), "-o", str(binary)],
            check=True,
            timeout=120,
        )
        self.process = subprocess.Popen(
            [str(binary), str(cpus[0]), str(cpus[1])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def measure(self, num_trips: int = 1000) -> float:
        """Nanoseconds one way; about 2 ms."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(f"{num_trips}\n")
        self.process.stdin.flush()
        one_way_ns = float(self.process.stdout.readline())
        if one_way_ns < 0:
            raise RuntimeError("the ping-pong helper could not pin its threads or timed out")
        return one_way_ns

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait(timeout=10)


class JobHandle:
    """One job: its processes and one connection per rank."""

    def __init__(self, name: str, commands: list[list[str]], envs: list[dict[str, str]]) -> None:
        self.name = name
        self.log = tempfile.TemporaryFile(  # noqa: SIM115 (closed by close)
            "w+", encoding="utf-8"
        )
        self.processes = [
            subprocess.Popen(
                command,
                env={**os.environ, "OMP_NUM_THREADS": "1", **env},
                stdin=subprocess.DEVNULL,
                stdout=self.log,
                stderr=subprocess.STDOUT,
            )
            for command, env in zip(commands, envs, strict=True)
        ]
        self.streams: list[Any] = []
        self.is_dead = False  # a rank gave no answer: no contender of this job can run again
        self.contenders: dict[str, str | None] = {}
        self.versions: dict[str, str] = {}
        self.estimates: dict[tuple[str, str, int], float] = {}

    def connect(self, server: socket.socket, num_ranks: int) -> None:
        """Waits for a hello from each rank. Jobs start one after another on the one socket."""
        hellos: list[tuple[int, Any]] = []
        deadline = time.monotonic() + START_TIMEOUT_S
        links: list[socket.socket] = []
        while len(links) < num_ranks:
            server.settimeout(0.5)
            try:
                links.append(server.accept()[0])
            except TimeoutError:
                if time.monotonic() > deadline or any(p.poll() for p in self.processes):
                    raise JobFailed(f"{self.name} did not start: {self.tail()}") from None
        for link in links:
            link.settimeout(START_TIMEOUT_S)
            stream = link.makefile("rw", encoding="utf-8")
            try:
                line = stream.readline()
            except TimeoutError:
                line = ""
            if not line:
                raise JobFailed(f"{self.name} did not start: {self.tail()}")
            hello = json.loads(line)
            hellos.append((hello["rank"], stream))
            self.versions = hello["versions"]
            for contender, reason in hello["contenders"].items():
                self.contenders[contender] = self.contenders.get(contender) or reason
            link.settimeout(BLOCK_TIMEOUT_S)
        self.streams = [stream for _, stream in sorted(hellos, key=lambda item: item[0])]

    def run(self, block: dict[str, Any], cpus: list[int]) -> dict[str, Any]:
        """Runs a block on all ranks. A batch's figure is the slowest rank's."""
        if self.is_dead:
            raise JobFailed(f"{self.name} no longer answers")
        for rank, stream in enumerate(self.streams):
            stream.write(json.dumps({**block, "cpu": cpus[rank % len(cpus)]}) + "\n")
            stream.flush()
        answers = []
        for rank, stream in enumerate(self.streams):
            try:
                line = stream.readline()
            except TimeoutError:
                line = ""
            if not line:
                self.is_dead = True
                raise JobFailed(f"{self.name} rank {rank} gave no answer: {self.tail()}")
            answers.append(json.loads(line))
        errors = [answer["error"] for answer in answers if "error" in answer]
        if errors:
            raise JobFailed(f"{block['contender']}: {errors[0]}")
        # Batch by batch: a rank that comes late to a batch finds its data there and looks fast.
        slowest = [max(us) for us in zip(*(answer["batches"] for answer in answers), strict=True)]
        return {
            "median": statistics.median(slowest),
            "best": min(slowest),
            "wrong": sum(answer.get("wrong", 0) for answer in answers),
            "waited": max(answer["waited"] for answer in answers),
            "work_ns": max(max(answer["speeds_ns"]) for answer in answers),
        }

    def tail(self) -> str:
        self.log.seek(0)
        return self.log.read()[-800:].strip() or "(no output)"

    def close(self) -> None:
        for stream in self.streams:
            with contextlib.suppress(OSError):  # a dead rank: its pipe is broken
                stream.close()
        for process in self.processes:
            for end in (lambda: None, process.terminate, process.kill):
                end()
                try:
                    process.wait(timeout=5)
                    break
                except subprocess.TimeoutExpired:
                    continue
        self.log.close()


def start_torch_job(
    name: str,
    contenders: list[str],
    num_ranks: int,
    folder: Path,
    vllm_lib: str | None,
    worker: str = "peer_worker.py",
) -> JobHandle:
    command = [
        *[sys.executable, str(HERE / worker), "--job", name],
        *["--socket", str(folder / "socket"), "--rendezvous", str(folder / f"store-{name}")],
        *["--contenders", ",".join(contenders)],
    ]
    if vllm_lib:
        command += ["--vllm-lib", vllm_lib]
    envs = [{"RANK": str(rank), "WORLD_SIZE": str(num_ranks)} for rank in range(num_ranks)]
    return JobHandle(name, [command] * num_ranks, envs)


def start_mpi_job(
    name: str, python: str, num_ranks: int, folder: Path, worker: str = "peer_worker.py"
) -> JobHandle:
    """`python` has mpi4py and its MPI in one environment: mpiexec lies beside it."""
    command = [str(Path(python).parent / "mpiexec"), "-n", str(num_ranks)]
    env = {}
    if name == "openmpi":
        # The workers pin themselves; more ranks than cores must be asked for, and root allowed.
        command += ["--bind-to", "none", "--map-by", ":OVERSUBSCRIBE"]
        env = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    command += [python, str(HERE / worker), "--job", name]
    command += ["--socket", str(folder / "socket")]
    return JobHandle(name, [command], [env])
