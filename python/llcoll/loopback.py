"""N ranks on the GPUs at hand, more than there are GPUs: develop for a node with one GPU.

    python -m llcoll.loopback -n 4 [--timeout SECONDS] [--] script.py args...
    python -m llcoll.loopback -n 4 -m module args...

Runs torchrun on this host under a private CUDA MPS daemon, without which ranks that share a GPU
take turns instead of running together, and stops the daemon however the run ends. A rank picks its
GPU: `torch.cuda.set_device(local_rank % torch.cuda.device_count())`; its process group is Gloo's,
since NCCL refuses two ranks on a GPU. Where each rank has a GPU this is plain torchrun.

Exit status: torchrun's; 124 at --timeout; 128 + the signal's number where one ended the launcher;
2 where it could not start.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

# Asks the driver's library: a CUDA context of the launcher's own is neither wanted nor cheap.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")

import torch

from llcoll import _loopback_guard as guard

MAX_RANKS = 48  # clients that one MPS server takes, on every GPU that has MPS
START_LIMIT_S = 20.0
GRACE_S = 10.0
GUARD_LIMIT_S = 30.0
STATUS_CANNOT_START = 2
STATUS_TIMEOUT = 124
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
VALUE_OPTIONS = ("-n", "--nproc-per-node", "--timeout")
# Without multicast: ranks that share a GPU have none, and their rendezvous must not ask for it.
ENVIRONMENT = {
    "LLCOLL_LOOPBACK": "1",
    "TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES": "1",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NCCL_NVLS_ENABLE": "0",
}
# Of one host's ranks. A kernel that is loaded at its first launch waits for the GPU, where a peer's
# kernel waits for us. Gloo would look up the host's own name, which need not resolve.
DEFAULTS = {
    "CUDA_MODULE_LOADING": "EAGER",
    "OMP_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
}


class CannotStart(Exception):
    """With words for the user."""


def split(argv: list[str]) -> tuple[list[str], list[str]]:
    """The launcher's own arguments, and the command: the program's may look like ours."""
    idx = 0
    while idx < len(argv):
        if argv[idx] == "--":
            return argv[:idx], argv[idx + 1 :]
        if argv[idx] == "-m" or not argv[idx].startswith("-"):
            return argv[:idx], argv[idx:]
        idx += 2 if argv[idx] in VALUE_OPTIONS else 1
    return argv, []


def parse_args(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m llcoll.loopback",
        usage="%(prog)s -n N [--timeout SECONDS] [--] (script.py | -m module) [args...]",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-n", "--nproc-per-node", type=int, required=True, metavar="N")
    parser.add_argument("--timeout", type=float, default=0, help="seconds; 0: no limit")
    own, command = split(argv)
    args = parser.parse_args(own)
    if not 1 <= args.nproc_per_node <= MAX_RANKS:
        parser.error(f"-n {args.nproc_per_node}: 1 to {MAX_RANKS} ranks")
    if args.timeout < 0:
        parser.error(f"--timeout {args.timeout:g} is below 0")
    if not command or command == ["-m"]:
        parser.error("no program: give script.py or -m module")
    args.command = command
    return args


def count_gpus() -> int:
    return torch.cuda.device_count()


def torchrun_command(num_ranks: int, command: list[str]) -> list[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    # The host's own name need not resolve.
    launcher += ["--local-addr", "127.0.0.1", "--nproc-per-node", str(num_ranks)]
    return launcher + command


def start_daemon(directory: str, environment: dict[str, str]) -> None:
    log_path = Path(directory, "start.log")
    # The daemon sees every GPU; were it told of some, it would renumber them and the clients'
    # CUDA_VISIBLE_DEVICES would pick among those.
    own = {k: v for k, v in environment.items() if k != "CUDA_VISIBLE_DEVICES"}
    status: int | str
    with log_path.open("wb") as log:  # a pipe would stay open as long as the daemon lives
        try:
            status = subprocess.run(
                [guard.CONTROL, "-d"],
                env=own,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                timeout=START_LIMIT_S,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            status = f"no answer within {START_LIMIT_S:g} s"
    deadline = time.monotonic() + 5
    while status == 0 and time.monotonic() < deadline:
        if any(guard.is_mps(name) for name in guard.processes(directory).values()):
            return
        time.sleep(0.02)
    logs = [log_path, *sorted(Path(directory, "log").glob("*.log"))]
    said = "\n".join(path.read_text(errors="replace")[-1000:].strip() for path in logs).strip()
    reason = "it ended at once" if status == 0 else f"status {status}"
    raise CannotStart(
        f"the MPS daemon ({guard.CONTROL} -d) did not start: {reason}\n{said}".strip()
    )


@contextmanager
def private_mps(environment: dict[str, str]) -> Iterator[dict[str, str]]:
    """The environment for ranks under a daemon of their own, which ends with the block.

    A guard process does the ending, so that it happens even if this one is killed.
    """
    if shutil.which(guard.CONTROL) is None:
        raise CannotStart(
            f"{guard.CONTROL} is not on PATH. Ranks that share a GPU need CUDA MPS, which comes "
            "with NVIDIA's driver for Linux (package nvidia-compute-utils in some distributions; "
            "in a container, the host's binary must be mounted)"
        )
    directory = tempfile.mkdtemp(prefix="llcoll-mps-")
    if len(directory) > 80:  # the daemon's socket lies below; socket paths end at 107 characters
        os.rmdir(directory)
        directory = tempfile.mkdtemp(prefix="llcoll-mps-", dir="/tmp")
    inside = {**environment, **guard.directories(directory)}
    for name in guard.directories(directory).values():
        os.mkdir(name)
    watcher = subprocess.Popen(
        [sys.executable, "-S", guard.__file__, directory],
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        start_daemon(directory, inside)
        yield inside
    finally:
        assert watcher.stdin is not None
        watcher.stdin.close()
        try:
            watcher.wait(GUARD_LIMIT_S)
        except subprocess.TimeoutExpired:
            watcher.kill()
            print(f"llcoll.loopback: {directory} could not be cleaned up", file=sys.stderr)
        if os.path.isdir(directory):
            guard.stop(directory)


class Run:
    """torchrun as a child. Signals end it: the first as asked, a second at once."""

    def __init__(self) -> None:
        self.caught: list[int] = []
        self._previous = {number: signal.signal(number, self._catch) for number in SIGNALS}

    def _catch(self, number: int, _frame: FrameType | None) -> None:
        self.caught.append(number)

    def restore_signals(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def run(self, command: list[str], environment: dict[str, str], limit_s: float) -> int:
        if self.caught:
            return 128 + self.caught[0]
        # A session of its own: a terminal's Ctrl-C comes to us alone and is passed on once.
        process = subprocess.Popen(command, env=environment, start_new_session=True)
        try:
            deadline = time.monotonic() + limit_s if limit_s else float("inf")
            status = self._wait(process, deadline, 0)
            if status is not None:
                return status if status >= 0 else 128 - status
            if self.caught:
                process.send_signal(self.caught[0])
                final = 128 + self.caught[0]
            else:
                print(f"llcoll.loopback: {limit_s:g} s are over: stopping", file=sys.stderr)
                process.terminate()
                final = STATUS_TIMEOUT
            self._wait(process, time.monotonic() + GRACE_S, len(self.caught))
            return final
        finally:
            if process.poll() is None:
                _kill_tree(process)

    def _wait(self, process: subprocess.Popen, deadline: float, num_known: int) -> int | None:
        """The exit status; None at the deadline, or at a signal beyond the known ones."""
        while time.monotonic() < deadline and len(self.caught) == num_known:
            try:
                return process.wait(0.05)
            except subprocess.TimeoutExpired:
                continue
        return process.poll()


def _kill_tree(process: subprocess.Popen) -> None:
    """torchrun's ranks lead sessions of their own, so they are found as its descendants."""
    pids = [process.pid]
    for pid in pids:
        try:
            for task in Path(f"/proc/{pid}/task").iterdir():
                pids += map(int, (task / "children").read_text().split())
        except OSError:
            continue
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.wait()


def main(argv: list[str] | None = None) -> int:
    args = parse_args(sys.argv[1:] if argv is None else argv)
    run = Run()
    try:
        num_gpus = count_gpus()
        if num_gpus == 0:
            known = f"torch {torch.__version__} " + (
                "is built without CUDA" if torch.version.cuda is None else "sees none"
            )
            raise CannotStart(f"loopback needs a GPU; {known}")
        environment = {**DEFAULTS, **os.environ}
        command = torchrun_command(args.nproc_per_node, args.command)
        if args.nproc_per_node <= num_gpus:
            words = f"{args.nproc_per_node} ranks, {num_gpus} GPUs: torchrun, a GPU for each rank"
            print(f"llcoll.loopback: {words}", file=sys.stderr, flush=True)
            return run.run(command, environment, args.timeout)
        environment |= ENVIRONMENT
        with private_mps(environment) as inside:
            return run.run(command, inside, args.timeout)
    except CannotStart as error:
        print(f"llcoll.loopback: {error}", file=sys.stderr)
        return STATUS_CANNOT_START
    finally:
        run.restore_signals()


if __name__ == "__main__":
    sys.exit(main())
