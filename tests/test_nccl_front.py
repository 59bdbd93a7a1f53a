"""libllcoll_nccl.so before a fake NCCL, on the host: what it takes, what it hands on, and when."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import llcoll

ROOT = Path(__file__).parent.parent
FRONT = Path(llcoll.library_path()) / "libllcoll_nccl.so"
TIMEOUT = 60.0

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")


def compile_cpp(folder: Path, source: str, output: str, *flags: str) -> None:
    command = ["g++", "-std=c++20", "-O2", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'csrc'}"]
    command += [str(ROOT / "tests" / "cpp" / source), *flags, "-lpthread", "-o", output]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT)
    assert result.returncode == 0, result.stderr


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("front")
    fake = ["-shared", "-fPIC", "-Wl,-soname,libnccl.so.2"]
    compile_cpp(folder, "fake_nccl.cpp", "libnccl.so.2", *fake)
    compile_cpp(folder, "front_test.cpp", "front_test", "./libnccl.so.2", f"-Wl,-rpath,{folder}")
    return folder


class Run:
    """All ranks of one run of front_test: what they printed, and what the fake NCCL saw."""

    def __init__(
        self, built: Path, folder: Path, mode: str, world: int, front: bool = True, **extra: str
    ) -> None:
        folder.mkdir(exist_ok=True)
        env = {k: v for k, v in os.environ.items() if not k.startswith(("LLCOLL_", "NCCL_"))}
        env |= {"LLCOLL_NCCL_TEST_HOST": "1", "FAKE_NCCL_DIR": str(folder)}
        if mode != "cost":
            env["FAKE_NCCL_LOG"] = str(folder / "log")
        if front:
            env["LD_PRELOAD"] = str(FRONT)
        env |= extra
        ranks = [
            subprocess.Popen(
                [str(built / "front_test"), mode, str(rank), str(world), "id"],
                env=env,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(world)
        ]
        try:
            pairs = [rank.communicate(timeout=TIMEOUT) for rank in ranks]
        finally:
            for rank in ranks:
                if rank.poll() is None:
                    rank.kill()
                    rank.wait()
        self.outputs = [out for out, _ in pairs]
        self.errors = [err for _, err in pairs]
        assert [rank.returncode for rank in ranks] == [0] * world, "\n".join(self.errors)
        logs = [folder / f"log.{rank.pid}" for rank in ranks]
        self.calls = [log.read_text().splitlines() if log.exists() else [] for log in logs]

    def forwarded(self) -> list[list[str]]:
        """Of each rank, the collectives that reached NCCL."""
        own = ("Comm", "Group")
        return [[call for call in calls if not call.startswith(own)] for calls in self.calls]


@pytest.mark.parametrize("mode", ["collectives", "scalable"])
@pytest.mark.parametrize("world", [2, 3, 4])
def test_small_collectives_are_taken(built: Path, tmp_path: Path, mode: str, world: int) -> None:
    """With NCCL's in-place rules; nothing of it reaches NCCL."""
    run = Run(built, tmp_path, mode, world)
    assert run.forwarded() == [[]] * world


def test_control_without_front(built: Path, tmp_path: Path) -> None:
    """The same program without the front fails: the fake sums nothing."""
    with pytest.raises(AssertionError, match="out"):
        Run(built, tmp_path, "collectives", 2, front=False)


def test_the_rest_is_forwarded(built: Path, tmp_path: Path) -> None:
    """Large, empty and overflowing sizes, types and operators that llcoll lacks, bad roots, p2p."""
    run = Run(built, tmp_path, "forwarded", 2)
    large = 4 << 20
    expected = [
        f"AllReduce count={large} type=0 op=0 group=0",
        "AllReduce count=1 type=2 op=4 group=0",
        "AllReduce count=1 type=3 op=2 group=0",
        "AllReduce count=1 type=11 op=0 group=0",
        "AllReduce count=1 type=7 op=5 group=0",
        "AllReduce count=0 type=7 op=0 group=0",
        f"AllReduce count={(2**64 - 1) // 4} type=7 op=0 group=0",
        "Broadcast count=4 type=0 root=99 group=0",
        "Bcast",
        f"Broadcast count={large} type=0 root=0 group=0",
        f"AllGather count={1 << 20} type=0 group=0",
        f"ReduceScatter count={1 << 20} type=0 op=0 group=0",
        f"Reduce count={large} type=0 op=0 root=1 group=0",
        "Send count=4 type=0 peer=0 group=0",
        "Recv count=4 type=0 peer=0 group=0",
    ]
    assert run.forwarded() == [expected] * 2


@pytest.mark.parametrize("world", [2, 3])
def test_groups(built: Path, tmp_path: Path, world: int) -> None:
    """What llcoll takes starts at the outermost end, in order; the rest is one group of NCCL's."""
    run = Run(built, tmp_path, "group", world)
    for rank, calls in enumerate(run.calls):
        start = calls.index("GroupStart")
        assert calls[start : start + 7] == [
            "GroupStart",
            f"AllReduce count={4 << 20} type=0 op=0 group=1",
            "GroupStart",
            f"Send count=4 type=0 peer={(rank + 1) % world} group=2",
            f"Recv count=4 type=0 peer={(rank + world - 1) % world} group=2",
            "GroupEnd",
            "GroupEnd",
        ]


@pytest.mark.parametrize("world", [4, 5])
def test_split_shrink_and_grouped_creation(built: Path, tmp_path: Path, world: int) -> None:
    assert Run(built, tmp_path, "split", world).forwarded() == [[]] * world


def test_several_gpus_in_one_process(built: Path, tmp_path: Path) -> None:
    """CommInitAll, and a group of CommInitRank in one thread."""
    assert Run(built, tmp_path, "threads", 1).forwarded() == [[]]


def test_nonblocking_communicators_stay_with_nccl(built: Path, tmp_path: Path) -> None:
    run = Run(built, tmp_path, "nonblocking", 2)
    assert run.forwarded() == [["AllReduce count=1 type=8 op=0 group=0"] * 2] * 2
    by_environment = Run(built, tmp_path / "again", "forwarded", 2, NCCL_COMM_BLOCKING="0")
    assert len(by_environment.forwarded()[0]) == 15


def test_abort_of_an_idle_rank_ends_nobodys_wait(built: Path, tmp_path: Path) -> None:
    run = Run(built, tmp_path, "abort", 3)
    assert all(calls[-1] == "CommAbort" for calls in run.calls)


def test_timeout_is_a_remote_error(built: Path, tmp_path: Path) -> None:
    Run(built, tmp_path, "timeout", 3, LLCOLL_TIMEOUT="1")


def test_nothing_is_taken_at_zero(built: Path, tmp_path: Path) -> None:
    """Not even a communicator is made."""
    run = Run(built, tmp_path, "forwarded", 2, LLCOLL_NCCL_MAX_BYTES="0")
    assert len(run.forwarded()[0]) == 15
    assert not list(tmp_path.glob("id.*"))  # no round of the bootstrap


def test_size_limit_and_its_errors(built: Path, tmp_path: Path) -> None:
    limited = Run(built, tmp_path, "group", 2, LLCOLL_NCCL_MAX_BYTES="4M")
    assert not any("AllReduce" in call for calls in limited.forwarded() for call in calls)
    with pytest.raises(AssertionError, match="LLCOLL_NCCL_MAX_BYTES is 'many'"):
        Run(built, tmp_path / "bad", "group", 2, LLCOLL_NCCL_MAX_BYTES="many")


def test_calls_that_llcoll_may_have(built: Path, tmp_path: Path) -> None:
    """The fake NCCL sums nothing, so what is left to it shows."""
    Run(built, tmp_path, "group", 2, LLCOLL_NCCL_CALLS="Reduce,AllReduce")
    with pytest.raises(AssertionError, match="out"):
        Run(built, tmp_path / "other", "collectives", 2, LLCOLL_NCCL_CALLS="Reduce,Broadcast")
    for bad in ("AllReduce,Alltoall", "Send/Recv", "AllReduce,,Reduce"):
        with pytest.raises(AssertionError, match=f"LLCOLL_NCCL_CALLS is '{bad}'"):
            Run(built, tmp_path / "bad", "group", 2, LLCOLL_NCCL_CALLS=bad)


MOVED_ALONE = [
    "AllReduce count=4 type=0 op=0 group=0",
    "AllReduce count=4 type=0 op=5 group=0",
    "AllReduce count=0 type=0 op=0 group=0",
    "AllReduce count=4 type=12 op=0 group=0",
    "Reduce count=4 type=0 op=0 root=1 group=0",
    "AllGather count=4 type=0 group=0",
    "Send count=4 type=0 peer=0 group=0",
]


def test_one_rank_in_place_is_done_at_once(built: Path, tmp_path: Path) -> None:
    run = Run(built, tmp_path, "alone", 1, LLCOLL_LOG="1")
    assert run.forwarded() == [MOVED_ALONE]
    text = "besides 18 calls of communicators with one rank, 11 of them in place"
    assert text in run.errors[0]
    # The fake's Bcast calls its Broadcast, as NCCL's does: one more line.
    nothing = Run(built, tmp_path / "nothing", "alone", 1, LLCOLL_NCCL_MAX_BYTES="0")
    assert len(nothing.forwarded()[0]) == 11 + 1 + len(MOVED_ALONE)
    some = Run(built, tmp_path / "some", "alone", 1, LLCOLL_NCCL_CALLS="AllReduce")
    assert len(some.forwarded()[0]) == 5 + 1 + len(MOVED_ALONE)
    own_wish = Run(built, tmp_path / "own", "alone", 1, NCCL_COMM_BLOCKING="0")
    assert len(own_wish.forwarded()[0]) == 11 + 1 + len(MOVED_ALONE)


def test_log_counts_one_rank_apart(built: Path, tmp_path: Path) -> None:
    run = Run(built, tmp_path, "cost", 1, LLCOLL_LOG="1", LLCOLL_NCCL_MAX_BYTES="64K")
    assert re.search(r"besides \d+ calls of communicators with one rank", run.errors[0])
    assert "0 of 0 calls by llcoll" in run.errors[0]


def test_log_counts_every_call(built: Path, tmp_path: Path) -> None:
    run = Run(built, tmp_path, "group", 2, LLCOLL_LOG="1")
    for text in run.errors:
        lines = [re.sub(r".*pid \d+: ", "", line) for line in text.splitlines()]
        assert "a communicator of 2 ranks: messages up to 1048576 bytes go to llcoll" in lines
        table = [" ".join(line.split()) for line in lines]
        assert "ncclAllReduce up to 8 B: 2 by llcoll, 0 by NCCL" in table
        assert "ncclAllReduce up to 4 MiB: 0 by llcoll, 1 by NCCL" in table
        assert "ncclSend/Recv up to 4 B: 0 by llcoll, 2 by NCCL" in table
        assert table[-1].startswith("2 of 5 calls by llcoll (40.0 %), the rest by ")
        assert table[-1].endswith("libnccl.so.2")


def test_cost_of_a_front_that_takes_nothing(built: Path, tmp_path: Path) -> None:
    """Under 100 ns a call, by the best of five rounds with and without it."""

    def best(name: str, **how: str | bool) -> float:
        run = Run(built, tmp_path / name, "cost", 1, **how)  # type: ignore[arg-type]
        return float(run.outputs[0].split()[0])

    added = best("with", LLCOLL_NCCL_MAX_BYTES="0") - best("without", front=False)
    assert added < 100, f"{added:.1f} ns a call"


@pytest.mark.parametrize(
    ("free", "expected"), [("none", MOVED_ALONE[-2:]), ("pairs", MOVED_ALONE[-3:-1]), ("all", [])]
)
def test_free_calls_send_nothing(
    built: Path, tmp_path: Path, free: str, expected: list[str]
) -> None:
    """benchmarks/nccl_free.cpp, before the fake alone: calls return, and do not reach it."""
    command = ["g++", "-std=c++20", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    command += ["-o", str(tmp_path / "free.so"), str(ROOT / "benchmarks" / "nccl_free.cpp"), "-ldl"]
    subprocess.run(command, check=True, timeout=TIMEOUT)
    how = {"LD_PRELOAD": str(tmp_path / "free.so"), "NCCL_FREE": free}
    run = Run(built, tmp_path / "run", "alone", 1, front=False, **how)
    assert run.forwarded()[0][-2:] == expected
    with pytest.raises(AssertionError, match="NCCL_FREE is 'some'"):
        Run(built, tmp_path / "bad", "alone", 1, front=False, **{**how, "NCCL_FREE": "some"})


def test_launcher(built: Path, tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
    show = "import os; print(os.environ['LD_PRELOAD'], os.environ['LLCOLL_NCCL_MAX_BYTES'])"
    fake = built / "libnccl.so.2"
    launcher = [sys.executable, "-m", "llcoll.nccl"]
    options = ["--max-bytes", "4K", "--nccl", str(fake), "--"]
    result = subprocess.run(
        [*launcher, *options, sys.executable, "-c", show],
        env=env,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == [str(FRONT), str(fake), "4K"]
    missing = subprocess.run(
        [*launcher, "/nonexistent/program"],
        env=env,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert missing.returncode == 127 and "No such file" in missing.stderr


def test_declarations_match_nccl_h(tmp_path: Path) -> None:
    """Our declarations of the interface against those of an nccl.h, where there is one."""
    places = [Path(p) / "nvidia" / "nccl" / "include" for p in sys.path]
    header = next((p / "nccl.h" for p in places if (p / "nccl.h").exists()), None)
    cuda = next((p for p in places if (p.parents[1] / "cu13" / "include").exists()), None)
    if header is None or cuda is None:
        pytest.skip("no nccl.h, or no CUDA headers for it")
    text = header.read_text()
    names = re.findall(r"X\((\w+), ", (ROOT / "csrc" / "nccl" / "abi.h").read_text())
    known = [name for name in names if re.search(rf"\bnccl{name}\(", text)]
    assert len(known) > 20
    checks = "\n".join(
        f"static_assert(shape(&::nccl{name}) == shape(static_cast<decltype(R::{name})>(nullptr)));"
        for name in known
    )
    # Parameters by size and kind, since theirs are enums and pointers to structs of their own.
    (tmp_path / "same.cpp").write_text(
        "#include <nccl.h>\n#include <array>\n#include <type_traits>\n"
        '#include "nccl/real.h"\nusing R = llcoll::nccl::Real;\n'
        "template <class T> constexpr int kind = std::is_pointer_v<T> + 2 * std::is_class_v<T>;\n"
        "template <class Result, class... P> constexpr auto shape(Result (*)(P...)) {\n"
        "  return std::array<long, 2 * sizeof...(P) + 1>"
        "{sizeof(Result), sizeof(P)..., kind<P>...};\n}\n"
        f"{checks}\n"
        "static_assert(sizeof(ncclUniqueId) == sizeof(llcoll::nccl::UniqueId));\n"
        "namespace n = llcoll::nccl;\n"
        "static_assert(offsetof(ncclConfig_t, blocking) == offsetof(n::Config, blocking));\n"
        "static_assert(ncclInProgress == n::kInProgress && ncclRemoteError == n::kRemoteError);\n"
        "static_assert(ncclInvalidUsage == n::kInvalidUsage && ncclFloat8e5m2 == n::kFloat8e5m2);\n"
        "static_assert(ncclUint64 == n::kUint64 && ncclBfloat16 == n::kBfloat16);\n"
        "static_assert(ncclAvg == n::kAvg && ncclMin == n::kMin && ncclMax == n::kMax);\n"
    )
    command = ["g++", "-std=c++20", "-fsyntax-only", f"-I{ROOT / 'csrc'}"]
    command += [f"-I{ROOT / 'csrc' / 'include'}", f"-I{header.parent}"]
    command += [f"-I{cuda.parents[1] / 'cu13' / 'include'}", "same.cpp"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT)
    assert result.returncode == 0, result.stderr
