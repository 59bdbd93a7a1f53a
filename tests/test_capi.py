"""libllcoll.so: a C program without torch and Python, by two bootstraps; the installed files."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import socket
import subprocess
import zipfile
from pathlib import Path

import pytest

import llcoll
from llcoll import diagnose

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples" / "c"
INCLUDE = ROOT / "csrc" / "include"
LIB = Path(llcoll.library_path())
TIMEOUT = 60.0
STRICT = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-O1"]

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc")


def compile_c(sources: list[Path], output: Path, *flags: str, compiler: str = "gcc") -> Path:
    command = [compiler, *STRICT, *map(str, sources), *flags, "-o", str(output)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
    assert result.returncode == 0, result.stderr
    return output


def link_flags(lib: Path = LIB) -> list[str]:
    return [f"-L{lib}", "-lllcoll", "-lpthread", f"-Wl,-rpath,{lib}"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run_ranks(commands: list[list[str]], **environment: str) -> list[str]:
    """Each rank's output; all must succeed."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("LLCOLL_")} | environment
    ranks = [
        subprocess.Popen(
            command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for command in commands
    ]
    try:
        outputs = [rank.communicate(timeout=TIMEOUT)[0] for rank in ranks]
    finally:
        for rank in ranks:
            if rank.poll() is None:
                rank.kill()
                rank.wait()
    assert [rank.returncode for rank in ranks] == [0] * len(ranks), "\n".join(outputs)
    return outputs


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sources = [ROOT / "tests" / "cpp" / "capi_test.c", EXAMPLES / "tcp_bootstrap.c"]
    output = tmp_path_factory.mktemp("capi") / "capi_test"
    return compile_c(sources, output, f"-I{INCLUDE}", *link_flags())


@pytest.mark.parametrize(
    ("mode", "world"),
    [
        *[("all", world) for world in (1, 2, 3, 4)],
        *[("settings", 2), ("timeout", 2), ("abort", 3)],
    ],
)
def test_program(program: Path, mode: str, world: int) -> None:
    port = str(free_port())
    outputs = run_ranks([[str(program), mode, str(r), str(world), port] for r in range(world)])
    assert all(output.endswith("ok\n") for output in outputs), outputs


def test_dump(program: Path, tmp_path: Path) -> None:
    """Written by C, read by llcoll.diagnose: the rank that stayed away is named."""
    port = str(free_port())
    commands = [[str(program), "timeout", str(r), "3", port] for r in range(3)]
    run_ranks(commands, LLCOLL_TEST_DUMPS=str(tmp_path), LLCOLL_DUMP_DIR="none")
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == [f"llcoll-rank{rank}.json" for rank in range(3)]
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in files)
    (finding,) = diagnose.diagnose(map(diagnose.read, files))
    assert (finding.call, finding.absent) == (2, [2]), finding
    assert any("all_reduce of 4 float32" in line for line in finding.lines), finding.lines


def test_environment(program: Path) -> None:
    """The same variables as for Python; what an algorithm cannot serve goes by another."""
    port = str(free_port())
    commands = [[str(program), "all", str(r), "2", port] for r in range(2)]
    run_ranks(
        commands,
        LLCOLL_ALGORITHM="two_shot_flag",
        LLCOLL_POLICY="invariant",
        LLCOLL_DEBUG="1",
        LLCOLL_SCRATCH_BYTES="2M",
        LLCOLL_FIRST_EPOCH=str(2**64 - 100),
    )


def test_example(tmp_path: Path) -> None:
    sources = [EXAMPLES / "all_reduce.c", EXAMPLES / "tcp_bootstrap.c"]
    program = compile_c(sources, tmp_path / "all_reduce", f"-I{INCLUDE}", *link_flags())
    port = str(free_port())
    outputs = run_ranks([[str(program), str(r), "2", "127.0.0.1", port] for r in range(2)])
    assert outputs == [f"rank {r} of 2: 1 3 5 7\n" for r in range(2)]


def find_mpi() -> Path | None:
    """Folder of mpicc and mpirun: PATH's, or those of an environment that .ci/make-env made."""
    cache = Path(os.environ.get("LLCOLL_CACHE", Path.home() / ".cache" / "llcoll"))
    found = shutil.which("mpicc")
    places = [Path(found).parent] if found else []
    places += [cache / name / "bin" for name in ("peers", "peers-mpich")]
    return next((p for p in places if (p / "mpicc").exists() and (p / "mpirun").exists()), None)


def test_mpi_example(tmp_path: Path) -> None:
    mpi = find_mpi()
    if mpi is None:
        pytest.skip("no mpicc and mpirun")
    env = {**os.environ, "PATH": f"{mpi}:{os.environ['PATH']}", "OMPI_ALLOW_RUN_AS_ROOT": "1"}
    env |= {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    program = tmp_path / "mpi_all_reduce"
    source = EXAMPLES / "mpi_all_reduce.c"
    compiling = ["mpicc", "-std=c99", str(source), f"-I{INCLUDE}", *link_flags(), "-o", program]
    subprocess.run(compiling, env=env, check=True, timeout=TIMEOUT)
    ran = subprocess.run(
        ["mpirun", "-n", "2", str(program)],
        env=env,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert ran.returncode == 0, ran.stderr
    assert sorted(ran.stdout.splitlines()) == [f"rank {r} of 2: llcoll 3, MPI 3" for r in range(2)]


def test_header_is_strict_c_and_cpp(tmp_path: Path) -> None:
    source = tmp_path / "header.c"
    source.write_text("#include <llcoll/llcoll.h>\nint main(void) { return 0; }\n")
    compile_c([source], tmp_path / "c", f"-I{INCLUDE}", "-pedantic", "-Wstrict-prototypes")
    as_cpp = shutil.copy(source, tmp_path / "header.cpp")
    command = ["g++", "-std=c++11", "-Wall", "-Werror", f"-I{INCLUDE}", "-fsyntax-only", as_cpp]
    subprocess.run(command, check=True, timeout=TIMEOUT)


def test_exports_nothing_else() -> None:
    """What the header declares, and only that; no torch, no Python, no CUDA behind it."""
    if shutil.which("nm") is None:
        pytest.skip("no nm (binutils)")
    library = str(LIB / "libllcoll.so")
    text = subprocess.run(
        ["nm", "-D", "--defined-only", library],
        capture_output=True,
        text=True,
        check=True,
        timeout=TIMEOUT,
    ).stdout
    exported = {line.split()[-1] for line in text.splitlines() if line.split()[-2] == "T"}
    header = (INCLUDE / "llcoll" / "llcoll.h").read_text()
    declared = set(re.findall(r"^LLCOLL_API [^(]*?(llcoll_\w+)\(", header, re.M))
    assert exported == declared and len(declared) > 15
    needed = subprocess.run(
        ["readelf", "-d", library], capture_output=True, text=True, check=True, timeout=TIMEOUT
    ).stdout
    assert not re.search(r"NEEDED.*(torch|python|cuda|c10)", needed)


def test_gpu_without_cuda_library(program: Path, tmp_path: Path) -> None:
    """A library without its CUDA part says so, on every rank."""
    shutil.copy(LIB / "libllcoll.so", tmp_path)
    library = ctypes.CDLL(str(tmp_path / "libllcoll.so"))
    gather_type = ctypes.CFUNCTYPE(
        ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p
    )

    @gather_type
    def alone(_context: int, own: int, num_bytes: int, everything: int) -> int:
        ctypes.memmove(everything, own, num_bytes)
        return 0

    class Config(ctypes.Structure):
        _fields_ = [
            *[("struct_bytes", ctypes.c_size_t), ("device", ctypes.c_int)],
            *[("timeout_s", ctypes.c_double), ("policy", ctypes.c_int)],
            *[("allow_low_precision", ctypes.c_int), ("scratch_bytes", ctypes.c_size_t)],
            *[("name", ctypes.c_char_p), ("selection", ctypes.c_char_p)],
        ]

    config = Config(ctypes.sizeof(Config), 0, -1.0, 0, 0, 0, None, None)
    comm = ctypes.c_void_p()
    library.llcoll_last_error.restype = ctypes.c_char_p
    status = library.llcoll_comm_create(ctypes.byref(comm), 0, 1, alone, None, ctypes.byref(config))
    assert status == 1 and not comm
    text = library.llcoll_last_error().decode()
    assert "loading libllcoll_cuda.so: rank 0: communicators on a GPU need the CUDA build" in text


def check_version_of_files(lib: Path) -> None:
    for path in ("pkgconfig/llcoll.pc", "cmake/llcoll/llcoll-config-version.cmake"):
        assert llcoll.__version__ in (lib / path).read_text(), path
    major, minor, patch = map(int, llcoll.__version__.split("."))
    header = (INCLUDE / "llcoll" / "llcoll.h").read_text()
    assert f"#define LLCOLL_VERSION {10000 * major + 100 * minor + patch} " in header


def test_versions_agree() -> None:
    check_version_of_files(LIB)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package folder as the wheel unpacks it, or one put together from this tree."""
    target = tmp_path_factory.mktemp("installed")
    given = os.environ.get("LLCOLL_TEST_WHEEL")
    if given:
        zipfile.ZipFile(given).extractall(target)
    else:
        shutil.copytree(LIB, target / "llcoll" / "lib")
        shutil.copytree(INCLUDE, target / "llcoll" / "include")
    return target / "llcoll"


def test_pkg_config(installed: Path, tmp_path: Path) -> None:
    if shutil.which("pkg-config") is None:
        pytest.skip("no pkg-config")
    env = {**os.environ, "PKG_CONFIG_PATH": str(installed / "lib" / "pkgconfig")}
    flags = subprocess.run(
        ["pkg-config", "--cflags", "--libs", "llcoll"],
        env=env,
        capture_output=True,
        text=True,
        check=True,
        timeout=TIMEOUT,
    ).stdout.split()
    sources = [EXAMPLES / "all_reduce.c", EXAMPLES / "tcp_bootstrap.c"]
    program = compile_c(sources, tmp_path / "all_reduce", *flags)
    port = str(free_port())
    run_ranks([[str(program), str(r), "2", "127.0.0.1", port] for r in range(2)])


def test_cmake(installed: Path, tmp_path: Path) -> None:
    if shutil.which("cmake") is None:
        pytest.skip("no cmake")
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.16)\nproject(user C)\nfind_package(llcoll 0.1 REQUIRED)\n"
        f"add_executable(user {EXAMPLES}/all_reduce.c {EXAMPLES}/tcp_bootstrap.c)\n"
        "target_link_libraries(user llcoll::llcoll)\n"
    )
    for command in (
        ["cmake", "-B", "build", "-S", ".", f"-DCMAKE_PREFIX_PATH={installed}"],
        ["cmake", "--build", "build"],
    ):
        result = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT
        )
        assert result.returncode == 0, result.stdout + result.stderr
    port = str(free_port())
    program = str(tmp_path / "build" / "user")
    run_ranks([[program, str(r), "2", "127.0.0.1", port] for r in range(2)])
