"""A process that has imported torch once and forks ranks on demand.

Importing torch takes seconds, a fork takes milliseconds. The server has one thread and never starts
a process group or CUDA, so its children are as good as fresh interpreters. It signals only children
that it has not reaped, so no pid can have been reused, and it takes every child with it when it
ends.
"""

from __future__ import annotations

import array
import ctypes
import faulthandler
import importlib
import os
import pickle
import select
import signal
import socket
import sys
import time
import traceback
from typing import Any

PR_SET_PDEATHSIG = 1


def die_with_parent(parent_pid: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(1)


def send_message(sock: socket.socket, message: Any) -> None:
    data = pickle.dumps(message)
    sock.sendall(len(data).to_bytes(8, "little") + data)


def _receive_exactly(sock: socket.socket, count: int) -> bytes:
    parts = []
    while count:
        part = sock.recv(min(count, 1 << 20))
        if not part:
            raise EOFError("the other side has closed")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def receive_message(sock: socket.socket) -> Any:
    size = int.from_bytes(_receive_exactly(sock, 8), "little")
    return pickle.loads(_receive_exactly(sock, size))


def _child_main(
    channel: socket.socket, env: dict[str, str], log_path: str, parent_pid: int
) -> None:
    die_with_parent(parent_pid)
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    log_fd = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log_fd, 1)
    os.dup2(log_fd, 2)
    os.close(log_fd)
    os.environ.update(env)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    state: dict[str, Any] = {}
    while True:
        try:
            module_name, function_name, args, kwargs = receive_message(channel)
        except EOFError:
            return
        try:
            function = getattr(importlib.import_module(module_name), function_name)
            reply: tuple[Any, ...] = ("value", function(state, *args, **kwargs))
        except BaseException as error:  # KeyboardInterrupt is an outcome that tests ask for
            names = [cls.__name__ for cls in type(error).__mro__]
            reply = ("error", names, str(error), traceback.format_exc())
        send_message(channel, reply)


class Server:
    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self.alive: set[int] = set()
        self.statuses: dict[int, int] = {}

    def reap(self) -> None:
        while self.alive:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            self.alive.discard(pid)
            self.statuses[pid] = os.waitstatus_to_exitcode(status)

    def fork(self, env: dict[str, str], log_path: str) -> int:
        _, ancillary, _, _ = self.control.recvmsg(1, socket.CMSG_SPACE(4))
        channel_fd = array.array("i", ancillary[0][2])[0]
        parent_pid = os.getpid()
        pid = os.fork()
        if pid:
            os.close(channel_fd)
            self.alive.add(pid)
            return pid
        self.control.close()
        signal.set_wakeup_fd(-1)
        status = 1
        try:
            _child_main(socket.socket(fileno=channel_fd), env, log_path, parent_pid)
            status = 0
        except BaseException:
            traceback.print_exc()
        if status == 0:
            sys.exit(
                0
            )  # the interpreter's ordinary exit: atexit handlers and destructors are under test too
        os._exit(status)

    def wait(self, pid: int, seconds: float) -> int | None:
        deadline = time.monotonic() + seconds
        while True:
            self.reap()
            if pid not in self.alive or time.monotonic() > deadline:
                return self.statuses.get(pid)
            time.sleep(0.002)

    def signal(self, pid: int, number: int) -> bool:
        self.reap()
        if pid in self.alive:
            os.kill(pid, number)
        return pid in self.alive

    def serve(self) -> None:
        while True:
            select.select([self.control], [], [])
            try:
                command, *args = receive_message(self.control)
            except EOFError:
                return
            send_message(self.control, getattr(self, command)(*args))

    def kill_all(self) -> None:
        self.reap()
        for pid in self.alive:
            os.kill(pid, signal.SIGKILL)


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    die_with_parent(int(sys.argv[2]))
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # the terminal's Ctrl-C is for pytest, which ends us
    for name in ("numpy", "torch", "torch.distributed"):
        importlib.import_module(name)
    server = Server(control)
    try:
        server.serve()
    finally:
        if server.control.fileno() >= 0:  # not in a child, which has closed its copy
            server.kill_all()


if __name__ == "__main__":
    main()
