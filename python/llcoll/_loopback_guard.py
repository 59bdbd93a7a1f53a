"""Ends what the loopback launcher started: its ranks, its MPS daemon, its directory.

Runs as a process of its own (`python _loopback_guard.py DIRECTORY`), without torch, and acts when
its standard input ends: the launcher closes it, or has died in whatever way. Processes are known
by the private pipe directory in their environment, so nobody else's are touched. Bounded.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

CONTROL = "nvidia-cuda-mps-control"
PIPE_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY"
LOG_VARIABLE = "CUDA_MPS_LOG_DIRECTORY"
QUIT_LIMIT_S = 5.0
END_LIMIT_S = 3.0


def directories(directory: str) -> dict[str, str]:
    """The part of the environment that leads to the private daemon."""
    return {PIPE_VARIABLE: f"{directory}/pipe", LOG_VARIABLE: f"{directory}/log"}


def _parent_and_name(pid: int) -> tuple[int, str, str]:
    text = Path(f"/proc/{pid}/stat").read_text()
    name, rest = text[text.index("(") + 1 :].rsplit(")", 1)
    state, parent = rest.split()[:2]
    return int(parent), name, state


def processes(directory: str) -> dict[int, str]:
    """pid -> name of every live process that has the private pipe directory, and their children.

    The guard itself, and whoever runs it, are not among them.
    """
    marker = f"{PIPE_VARIABLE}={directory}/pipe".encode()
    seen: dict[int, tuple[int, str]] = {}
    marked: set[int] = set()
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        pid = int(entry)
        try:
            parent, name, state = _parent_and_name(pid)
            if state in "ZX":
                continue
            seen[pid] = (parent, name)
            if marker in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                marked.add(pid)
        except (OSError, ValueError):  # gone, or another user's
            continue
    # The MPS server is the daemon's child, and may have an environment of its own making.
    while more := {pid for pid, (parent, _) in seen.items() if parent in marked} - marked:
        marked |= more
    return {pid: seen[pid][1] for pid in marked}


def is_mps(name: str) -> bool:
    return name.startswith(CONTROL[:15])  # the kernel keeps 15 characters


def _signal_all(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _end(directory: str, of_mps: bool, numbers: tuple[int, ...]) -> list[int]:
    """Signals those processes until none is left; each signal has END_LIMIT_S. The survivors."""
    left: list[int] = []
    for number in numbers:
        deadline = time.monotonic() + END_LIMIT_S
        first = True
        while left := [p for p, name in processes(directory).items() if is_mps(name) == of_mps]:
            if first and number:
                _signal_all(left, number)
            first = False
            if time.monotonic() > deadline:
                break
            time.sleep(0.02)
        if not left:
            break
    return left


def stop(directory: str) -> list[int]:
    """Ends ranks, then the daemon and its server, then removes the directory. Survivors' pids."""
    left = _end(directory, False, (signal.SIGKILL,))
    if any(is_mps(name) for name in processes(directory).values()):
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(
                [CONTROL],
                input=b"quit\n",
                env={**os.environ, **directories(directory)},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=QUIT_LIMIT_S,
                check=False,
            )
        # 0: `quit` may still be at work.
        left += _end(directory, True, (0, signal.SIGTERM, signal.SIGKILL))
    shutil.rmtree(directory, ignore_errors=True)
    return left


def main() -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    left = stop(sys.argv[1])
    if left:
        print(f"llcoll.loopback: processes {left} could not be ended", file=sys.stderr)
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
