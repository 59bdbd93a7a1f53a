"""The loopback launcher, with a fake MPS daemon: this needs no GPU. Every process ends bounded."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from llcoll import _loopback_guard as guard
from llcoll import loopback

PYTHON_PATH = str(Path(loopback.__file__).parents[1])

FAKE_CONTROL = """#!{python} -S
import os, signal, sys, time
from pathlib import Path
pipe, mode = Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"]), os.environ.get("FAKE_MPS", "")
def note(words):
    with open(os.environ["FAKE_MPS_LOG"], "a") as log:
        log.write(words + "\\n")
if sys.argv[1:] != ["-d"]:
    note("told " + sys.stdin.read().strip())
    (pipe / "quit").touch()
    sys.exit(0)
if mode == "fail":
    print("cannot do that: the GPU said no")
    sys.exit(1)
note("started, sees " + os.environ.get("CUDA_VISIBLE_DEVICES", "all"))
if os.fork():
    sys.exit(0)
os.setsid()
null = os.open(os.devnull, os.O_RDWR)
for fd in range(3):
    os.dup2(null, fd)
if mode == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
deadline = time.monotonic() + 60
while time.monotonic() < deadline:
    if (pipe / "quit").exists() and mode != "stubborn":
        note("ended")
        break
    time.sleep(0.02)
"""

# Runs the launcher as `python -m llcoll.loopback` does, where a GPU seems to be at hand.
LAUNCHER = """
import sys
from llcoll import loopback
loopback.count_gpus = lambda: {num_gpus}
loopback.GRACE_S = 1.0
if not {torchrun}:
    loopback.torchrun_command = lambda num_ranks, command: [sys.executable, *command]
sys.exit(loopback.main(sys.argv[1:]))
"""

WRITE_ENVIRONMENT = """
import json, os, sys
from pathlib import Path
rank = os.environ.get("RANK", "0")
Path(sys.argv[1], f"rank{rank}.json").write_text(json.dumps([dict(os.environ), sys.argv[2:]]))
"""

SLEEP = """
import os, signal, sys, time
from pathlib import Path
if "deaf" in sys.argv:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
partial = Path(sys.argv[1], "partial" + os.environ.get("RANK", "0"))
partial.write_text(str(os.getpid()) + " " + os.environ["CUDA_MPS_PIPE_DIRECTORY"])
partial.rename(Path(sys.argv[1], "pid" + os.environ.get("RANK", "0")))
time.sleep(60)
"""


def wait_for(condition: Callable[[], object], seconds: float = 40) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


@dataclass
class Place:
    """A directory, a PATH with the fake daemon, and the launchers started here."""

    path: Path
    tmp: Path
    launchers: list[subprocess.Popen]

    def environment(self, mode: str, with_control: bool) -> dict[str, str]:
        mine = {"FAKE_MPS": mode, "FAKE_MPS_LOG": str(self.log), "TMPDIR": str(self.tmp)}
        path = os.environ["PATH"]
        if with_control:
            path = f"{self.path / 'bin'}{os.pathsep}{path}"
        return {**os.environ, **mine, "PATH": path, "PYTHONPATH": f"{PYTHON_PATH}:{self.path}"}

    @property
    def log(self) -> Path:
        return self.path / "mps.log"

    @property
    def told(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []

    def start(
        self,
        *args: object,
        mode: str = "",
        with_control: bool = True,
        torchrun: bool = False,
        num_gpus: int = 1,
        extra: dict[str, str] | None = None,
    ) -> subprocess.Popen:
        launcher = LAUNCHER.format(num_gpus=num_gpus, torchrun=torchrun)
        process = subprocess.Popen(
            [sys.executable, "-c", launcher, *map(str, args)],
            env={**self.environment(mode, with_control), **(extra or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.launchers.append(process)
        return process

    def run(self, *args: object, limit: float = 60, **options: object) -> tuple[int, str]:
        process = self.start(*args, **options)  # type: ignore[arg-type]
        output, _ = process.communicate(timeout=limit)
        return process.returncode, output

    def script(self, text: str, name: str = "program.py") -> Path:
        path = self.path / name
        path.write_text(text)
        return path

    def sleepers(self, count: int) -> list[int]:
        """pids of the ranks that run SLEEP, once all of them do."""
        files = [self.path / f"pid{rank}" for rank in range(count)]
        wait_for(lambda: all(file.exists() for file in files))
        return [int(file.read_text().split()[0]) for file in files]

    def directories(self) -> list[Path]:
        """The launchers' own."""
        return list(self.tmp.glob("llcoll-mps-*"))

    def nothing_left(self) -> bool:
        return not self.directories()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    (tmp_path / "bin").mkdir()
    control = tmp_path / "bin" / guard.CONTROL
    control.write_text(FAKE_CONTROL.format(python=sys.executable))
    control.chmod(0o755)
    # Short: sockets lie below it.
    with tempfile.TemporaryDirectory(prefix="llcoll-test-", dir="/tmp") as short:
        here = Place(tmp_path, Path(short), [])
        yield here
        for process in here.launchers:
            if process.poll() is None:
                process.kill()
                process.wait(10)
        for left in here.directories():
            guard.stop(str(left))


@pytest.mark.parametrize(
    ("argv", "own", "command"),
    [
        (["-n", "4", "a.py", "-n", "9"], ["-n", "4"], ["a.py", "-n", "9"]),
        (["-n", "4", "-m", "a.b", "--x"], ["-n", "4"], ["-m", "a.b", "--x"]),
        (["--timeout=3", "-n", "2", "--", "a.py"], ["--timeout=3", "-n", "2"], ["a.py"]),
        (["-n", "2", "--", "-m", "a", "--"], ["-n", "2"], ["-m", "a", "--"]),
        (["-n", "2"], ["-n", "2"], []),
    ],
)
def test_arguments(argv: list[str], own: list[str], command: list[str]) -> None:
    assert loopback.split(argv) == (own, command)


@pytest.mark.parametrize("argv", [["-n", "0", "a.py"], ["-n", "2"], ["-n", "2", "-m"], ["a.py"]])
def test_wrong_arguments(argv: list[str]) -> None:
    with pytest.raises(SystemExit) as error:
        loopback.parse_args(argv)
    assert error.value.code == 2


def test_torchrun_under_daemon(place: Place) -> None:
    program = place.script(WRITE_ENVIRONMENT)
    extra = {"CUDA_VISIBLE_DEVICES": "3", "CUDA_MODULE_LOADING": "LAZY"}
    status, output = place.run(
        "-n", 2, "--", program, place.path, "-n", "7", "--", torchrun=True, extra=extra
    )
    assert status == 0, output
    pipes = set()
    for rank in range(2):
        environment, argv = json.loads((place.path / f"rank{rank}.json").read_text())
        assert argv == ["-n", "7", "--"]
        assert environment["WORLD_SIZE"] == "2" and environment["LOCAL_RANK"] == str(rank)
        assert {name: environment[name] for name in loopback.ENVIRONMENT} == loopback.ENVIRONMENT
        assert environment["CUDA_MODULE_LOADING"] == "LAZY"
        assert environment["CUDA_VISIBLE_DEVICES"] == "3"
        assert len(environment[guard.PIPE_VARIABLE]) < 90
        pipes.add(environment[guard.PIPE_VARIABLE])
    assert len(pipes) == 1
    assert place.told == ["started, sees all", "told quit", "ended"]
    assert place.nothing_left()


def test_enough_gpus_need_no_daemon(place: Place) -> None:
    place.script(WRITE_ENVIRONMENT, "some_module.py")
    status, output = place.run(
        "-n", 2, "-m", "some_module", place.path, torchrun=True, num_gpus=2, with_control=False
    )
    assert status == 0, output
    assert "2 ranks, 2 GPUs: torchrun, a GPU for each rank" in output
    environment, _ = json.loads((place.path / "rank1.json").read_text())
    assert "LLCOLL_LOOPBACK" not in environment and guard.PIPE_VARIABLE not in environment
    assert environment["GLOO_SOCKET_IFNAME"] == "lo"  # one host: its name is not looked up


def test_status_of_a_failed_program(place: Place) -> None:
    status, output = place.run("-n", 2, place.script("import sys; sys.exit(41)"))
    assert status == 41, output
    assert place.told[-1] == "ended" and place.nothing_left()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_everything(place: Place, number: signal.Signals) -> None:
    process = place.start("-n", 2, place.script(SLEEP), place.path, torchrun=True)
    pids = place.sleepers(2)
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + number, output
    assert not any(map(alive, pids))
    assert place.told[-1] == "ended" and place.nothing_left()


def test_deaf_program_at_timeout(place: Place) -> None:
    begin = time.monotonic()
    status, output = place.run("-n", 2, "--timeout", 2, place.script(SLEEP), place.path, "deaf")
    assert status == loopback.STATUS_TIMEOUT, output
    assert "2 s are over" in output
    assert time.monotonic() - begin < 30
    (pid,) = place.sleepers(1)
    assert not alive(pid)
    assert place.told[-1] == "ended" and place.nothing_left()


def test_launcher_killed(place: Place) -> None:
    """Nobody is left to clean up but the guard; the ranks lead sessions of their own."""
    process = place.start("-n", 2, place.script(SLEEP), place.path, "deaf", torchrun=True)
    pids = place.sleepers(2)
    process.kill()
    wait_for(lambda: not any(map(alive, pids)))
    wait_for(place.nothing_left)
    assert place.told[-1] == "ended"


def test_daemon_that_does_not_quit(place: Place) -> None:
    process = place.start("-n", 2, place.script(SLEEP), place.path, mode="stubborn")
    place.sleepers(1)
    (directory,) = place.directories()
    daemons = [p for p, name in guard.processes(str(directory)).items() if guard.is_mps(name)]
    assert len(daemons) == 1
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert not alive(daemons[0])
    assert place.nothing_left()


def test_daemon_that_does_not_start(place: Place) -> None:
    status, output = place.run("-n", 2, place.script(""), mode="fail")
    assert status == loopback.STATUS_CANNOT_START
    assert "MPS daemon" in output and "the GPU said no" in output
    assert place.nothing_left()


def test_mps_missing(place: Place) -> None:
    status, output = place.run("-n", 2, place.script(""), with_control=False)
    assert status == loopback.STATUS_CANNOT_START
    assert f"{guard.CONTROL} is not on PATH" in output and "driver" in output
    assert place.nothing_left()


def test_gpu_missing(place: Place) -> None:
    status, output = place.run("-n", 2, place.script(""), num_gpus=0)
    assert status == loopback.STATUS_CANNOT_START
    assert "needs a GPU" in output and not place.told


def test_guard_leaves_others_alone(place: Place) -> None:
    other = subprocess.Popen(
        [sys.executable, "-S", "-c", "import time; time.sleep(30)"],
        env={**os.environ, guard.PIPE_VARIABLE: "/tmp/llcoll-mps-of-someone-else/pipe"},
    )
    try:
        assert other.pid not in guard.processes("/tmp/llcoll-mps-of-someone")
        assert guard.stop("/tmp/llcoll-mps-of-nobody") == []
        assert other.poll() is None
    finally:
        other.kill()
        other.wait(10)
