"""Runs N ranks as child processes and hands back what each returned or raised.

The ranks are forked from a server that has imported torch (fork_server.py); the rendezvous store
lives in the pytest process, so it survives every rank. A function that ranks run is
`function(state, *args)` from an importable module that stays free of pytest; `state` is the rank's
own dictionary and lives as long as the rank. Everything has a deadline: ranks past it print their
stacks, are killed by pid and show up as `hung`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

from fork_server import receive_message, send_message

TESTS = Path(__file__).resolve().parent
DEVICE = os.environ.get("LLCOLL_TEST_DEVICE", "cpu")
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


@dataclass
class Outcome:
    """What became of one rank's part of a job."""

    rank: int
    kind: str  # "value", "error", "died" or "hung"
    value: Any = None
    error: list[str] = field(default_factory=list)  # class names, most derived first
    text: str = ""
    details: str = ""  # traceback, or the end of the rank's log

    def __str__(self) -> str:
        head = f"rank {self.rank} {self.kind}"
        if self.kind == "value":
            return f"{head}: {self.value!r}"
        return f"{head}: {self.error[:1]} {self.text}\n{self.details}"


class JobFailed(AssertionError):
    pass


class _Server:
    """The fork server and the store, started on first use."""

    def __init__(self) -> None:
        import torch.distributed as dist

        self.directory = tempfile.TemporaryDirectory(prefix="llcoll-tests-")
        self.store = dist.TCPStore(
            "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=300)
        )
        self.control, theirs = socket.socketpair()
        # The llcoll that this process would import, in the tree or installed.
        spec = importlib.util.find_spec("llcoll")
        package = [str(Path(spec.origin).parents[1])] if spec and spec.origin else []
        path = os.pathsep.join(
            [str(TESTS), *package, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        )
        self.process = subprocess.Popen(
            [sys.executable, str(TESTS / "fork_server.py"), str(theirs.fileno()), str(os.getpid())],
            pass_fds=[theirs.fileno()],
            env={**os.environ, **ONE_THREAD, "PYTHONPATH": path},
        )
        theirs.close()
        self.names = count()

    def call(self, command: str, *args: Any) -> Any:
        send_message(self.control, (command, *args))
        return receive_message(self.control)

    def fork(self, env: dict[str, str], log_path: str) -> tuple[int, socket.socket]:
        ours, theirs = socket.socketpair()
        send_message(self.control, ("fork", env, log_path))
        socket.send_fds(self.control, [b"f"], [theirs.fileno()])
        pid = receive_message(self.control)
        theirs.close()
        return pid, ours

    def close(self) -> None:
        self.control.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.directory.cleanup()


_server: _Server | None = None


def server() -> _Server:
    global _server
    if _server is None:
        _server = _Server()
    return _server


class Ranks:
    """N processes, ranks of a Gloo process group, with `llcoll.init()` done unless told not to."""

    def __init__(
        self,
        world_size: int,
        *,
        group: bool = True,
        init: bool = True,
        init_options: dict[str, Any] | None = None,
        timeout: float = 60,
        env: dict[str, str] | None = None,
        rank_env: dict[int, dict[str, str]] | None = None,
    ) -> None:
        self.world_size = world_size
        self.failed = False
        self._channels: list[socket.socket] = []
        self.pids: list[int] = []
        self._logs: list[str] = []
        home = server()
        name = f"job{next(home.names)}"
        for rank in range(world_size):
            log_path = os.path.join(home.directory.name, f"{name}.{rank}.log")
            rank_specific = {
                "LOCAL_RANK": str(rank),
                **(env or {}),
                **(rank_env or {}).get(rank, {}),
            }
            pid, channel = home.fork(rank_specific, log_path)
            self.pids.append(pid)
            self._channels.append(channel)
            self._logs.append(log_path)
        if group:
            per_rank = [(rank,) for rank in range(world_size)]
            options = {**(init_options or {})} if init else None
            args = (world_size, home.store.port, name, DEVICE, timeout, options)
            try:
                self.results("jobs", "join", *args, per_rank=per_rank, timeout=90)
            except BaseException:
                self.kill()
                raise

    def start(
        self,
        module: str,
        function: str,
        *args: Any,
        per_rank: Sequence[tuple[Any, ...]] | None = None,
        ranks: Sequence[int] | None = None,
        **kwargs: Any,
    ) -> None:
        """Sends the job; `per_rank[r]` precedes the common arguments on rank r."""
        for rank in range(self.world_size) if ranks is None else ranks:
            own = per_rank[rank] if per_rank else ()
            # A dead rank is reported by collect().
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                send_message(self._channels[rank], (module, function, (*own, *args), kwargs))

    def collect(self, timeout: float, ranks: Sequence[int] | None = None) -> list[Outcome]:
        wanted = list(range(self.world_size) if ranks is None else ranks)
        outcomes: dict[int, Outcome] = {}
        deadline = time.monotonic() + timeout
        while len(outcomes) < len(wanted):
            waiting = {self._channels[r]: r for r in wanted if r not in outcomes}
            ready, _, _ = select.select(
                list(waiting), [], [], max(0.0, deadline - time.monotonic())
            )
            if not ready:
                break
            for channel in ready:
                rank = waiting[channel]
                outcomes[rank] = self._receive(rank)
        hung = [r for r in wanted if r not in outcomes]
        for rank in hung:
            self.signal(rank, signal.SIGCONT)
            self.signal(rank, signal.SIGUSR1)  # faulthandler prints the stacks
        if hung:
            time.sleep(0.5)
        for rank in hung:
            self.signal(rank, signal.SIGKILL)
            text = f"no answer within {timeout} s"
            outcomes[rank] = Outcome(rank, "hung", text=text, details=self.log(rank))
        self.failed |= any(outcome.kind != "value" for outcome in outcomes.values())
        return [outcomes[r] for r in wanted]

    def _receive(self, rank: int) -> Outcome:
        try:
            reply = receive_message(self._channels[rank])
        except (EOFError, ConnectionResetError):
            status = server().call("wait", self.pids[rank], 5.0)
            return Outcome(
                rank, "died", value=status, text=f"status {status}", details=self.log(rank)
            )
        if reply[0] == "value":
            return Outcome(rank, "value", reply[1])
        return Outcome(rank, "error", error=reply[1], text=reply[2], details=reply[3])

    def run(
        self, module: str, function: str, *args: Any, timeout: float = 60, **kwargs: Any
    ) -> list[Outcome]:
        ranks = kwargs.get("ranks")
        self.start(module, function, *args, **kwargs)
        return self.collect(timeout, ranks)

    def results(self, module: str, function: str, *args: Any, **kwargs: Any) -> list[Any]:
        """As run(), but every rank must return a value."""
        outcomes = self.run(module, function, *args, **kwargs)
        bad = [outcome for outcome in outcomes if outcome.kind != "value"]
        if bad:
            text = "\n".join(map(str, bad))
            logs = "\n".join(f"log of rank {o.rank}:\n{self.log(o.rank)}" for o in bad[:2])
            raise JobFailed(f"{module}.{function}, {self.world_size} ranks:\n{text}\n{logs}")
        return [outcome.value for outcome in outcomes]

    def log(self, rank: int) -> str:
        try:
            return Path(self._logs[rank]).read_text(errors="replace")[-4000:]
        except FileNotFoundError:
            return ""

    def signal(self, rank: int, number: int) -> None:
        server().call("signal", self.pids[rank], number)

    def leave(self, timeout: float = 20) -> list[int | None]:
        """Ends the ranks as a script that falls off its end would.

        Their exit statuses; None for a hung one.
        """
        for channel in self._channels:
            channel.close()
        deadline = time.monotonic() + timeout
        statuses = [
            server().call("wait", pid, max(0.0, deadline - time.monotonic())) for pid in self.pids
        ]
        self.kill()
        return statuses

    def kill(self) -> None:
        self.failed = True
        for rank in range(self.world_size):
            self.signal(rank, signal.SIGKILL)
        for rank in range(self.world_size):
            server().call("wait", self.pids[rank], 5.0)
            self._channels[rank].close()

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


_pool: Ranks | None = None


def pool(world_size: int) -> Ranks:
    """Healthy ranks with the default options, kept from test to test; one world size at a time."""
    global _pool
    if _pool is not None and (_pool.failed or _pool.world_size != world_size):
        _pool.kill()
        _pool = None
    if _pool is None:
        _pool = Ranks(world_size)
    return _pool


def close() -> None:
    global _pool, _server
    if _pool is not None:
        _pool.kill()
        _pool = None
    if _server is not None:
        _server.close()
        _server = None
