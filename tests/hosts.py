"""Hosts on one machine: network namespaces joined by veth pairs and a bridge (iproute2, as root).

Each has an address of its own and sees nothing of the others but the network: not their loopback,
not their abstract sockets. What a process that was killed left behind is removed by the next one.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType

PREFIX = "llcoll"
ROOT = Path(__file__).resolve().parents[1]


def ip(*words: str, check: bool = True) -> str:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, timeout=20, check=False)
    if check and done.returncode != 0:
        raise RuntimeError(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def why_not() -> str | None:
    """Why no hosts can be made here, in words; None where they can."""
    if shutil.which("ip") is None:
        return "no ip command (Debian's iproute2)"
    name = f"{PREFIX}-{os.getpid()}-try"
    try:
        ip("netns", "add", name)
        ip("-n", name, "link", "add", "name", "a", "type", "veth", "peer", "name", "b")
        ip("-n", name, "link", "add", "name", "c", "type", "bridge")
    except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    finally:
        with contextlib.suppress(RuntimeError, OSError):
            ip("netns", "del", name)
    return None


def _remove_stale() -> None:
    for line in ip("netns", "list", check=False).splitlines():
        name = line.split()[0]
        parts = name.split("-")
        is_ours = len(parts) == 3 and parts[0] == PREFIX and parts[1].isdigit()
        if is_ours and not Path(f"/proc/{parts[1]}").exists():
            ip("netns", "del", name, check=False)


def build_relay(folder: Path) -> Path:
    """benchmarks/delay_relay.cpp, compiled."""
    program = folder / "delay_relay"
    source = ROOT / "benchmarks/delay_relay.cpp"
    command = ["c++", "-O2", "-std=c++20", str(source), "-o", str(program)]
    subprocess.run(command, check=True, timeout=120)
    return program


class Hosts:
    """`count` hosts; a context manager. With `relay`, a program that build_relay made, a packet
    takes `delay_us` more from host to host."""

    def __init__(self, count: int, relay: Path | None = None, delay_us: float = 0) -> None:
        self.count = count
        self._children: list[subprocess.Popen[str]] = []
        self._relay: subprocess.Popen[str] | None = None
        _remove_stale()
        self._hub = f"{PREFIX}-{os.getpid()}-hub"
        try:
            if relay is not None:
                self._add_relay(relay, delay_us)
                return
            ip("netns", "add", self._hub)
            ip("-n", self._hub, "link", "add", "name", "hub", "type", "bridge")
            ip("-n", self._hub, "link", "set", "hub", "up")
            for host in range(count):
                self._add(host)
        except BaseException:
            self.close()
            raise

    def name(self, host: int) -> str:
        return f"{PREFIX}-{os.getpid()}-{host}"

    def address(self, host: int) -> str:
        return f"10.213.0.{host + 1}"

    def _add(self, host: int) -> None:
        name, port = self.name(host), f"port{host}"
        ip("netns", "add", name)
        ip("-n", name, "link", "add", "name", "net0", "type", "veth", "peer", "name", port)
        ip("-n", name, "link", "set", port, "netns", self._hub)
        ip("-n", self._hub, "link", "set", port, "master", "hub", "up")
        ip("-n", name, "addr", "add", f"{self.address(host)}/24", "dev", "net0")
        ip("-n", name, "link", "set", "lo", "up")
        ip("-n", name, "link", "set", "net0", "up")

    def _add_relay(self, relay: Path, delay_us: float) -> None:
        names = [self.name(host) for host in range(self.count)]
        for name in names:
            ip("netns", "add", name)
        self._relay = subprocess.Popen(
            [str(relay), str(delay_us), *names],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._relay.stdout is not None
        if self._relay.stdout.readline().strip() != "ready":
            raise RuntimeError("the relay did not start")
        for host, name in enumerate(names):
            ip("-n", name, "addr", "add", f"{self.address(host)}/24", "dev", "net0")
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", "net0", "mtu", "9000", "txqueuelen", "10000", "up")

    def cut(self, host: int) -> None:
        """Takes the host's link down: its packets vanish, and nobody is told."""
        ip("-n", self._hub, "link", "set", f"port{host}", "down")

    def start(
        self, host: int, command: list[str], log: Path, env: dict[str, str] | None = None
    ) -> subprocess.Popen[str]:
        settings = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "net0",
            "PYTHONPATH": os.pathsep.join(
                [str(ROOT / "python"), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
            ),
            **(env or {}),
        }
        with log.open("w") as file:
            child = subprocess.Popen(
                ["ip", "netns", "exec", self.name(host), *command],
                env=settings,
                stdout=file,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        self._children.append(child)
        return child

    def torchrun(
        self, host: int, num_ranks: int, script: list[str], log: Path, env: dict[str, str]
    ) -> subprocess.Popen[str]:
        """Its ranks on this host, by torchrun's own rendezvous on host 0."""
        command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(self.count)]
        command += ["--nproc-per-node", str(num_ranks), "--rdzv-backend", "c10d"]
        command += ["--rdzv-endpoint", f"{self.address(0)}:29400", "--rdzv-id", "llcoll"]
        command += ["--local-addr", self.address(host), "--max-restarts", "0"]
        # By the machine's name, which all hosts have, nobody would know that the endpoint is here.
        command += ["--rdzv-conf", f"is_host={int(host == 0)}"]
        return self.start(host, [*command, *script], log, env)

    def close(self) -> None:
        for child in self._children:
            # The whole session that this test started, agents and ranks, while its leader is ours.
            if child.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGTERM)
        for child in self._children:
            try:
                child.wait(5)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
                child.wait(10)
        if self._relay is not None:
            self._relay.communicate(timeout=10)  # it ends with its input
        for name in [*(self.name(host) for host in range(self.count)), self._hub]:
            # Whoever is left in it is ours: a rank whose agent was killed.
            for pid in ip("netns", "pids", name, check=False).split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            ip("netns", "del", name, check=False)

    def __enter__(self) -> Hosts:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
