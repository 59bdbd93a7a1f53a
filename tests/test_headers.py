"""Every public header compiles alone: by the host compiler, and by nvcc where there is one."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

INCLUDE = Path(__file__).parent.parent / "csrc" / "include"
HEADERS = sorted(
    path.relative_to(INCLUDE).as_posix()
    for path in (INCLUDE / "llcoll").iterdir()
    if path.suffix in (".h", ".cuh")
)


def is_host(header: str) -> bool:
    return not header.endswith(".cuh")


def is_device(header: str) -> bool:
    return not Path(header).name.startswith("host_")


def find_nvcc() -> str | None:
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    return shutil.which("nvcc") or shutil.which("nvcc", path=f"{home}/bin")


def compile_alone(command: list[str], header: str, source: Path) -> None:
    # Twice: a header without a guard fails.
    source.write_text(f'#include "{header}"\n#include "{header}"\n')
    ccache = shutil.which("ccache")
    prefix = [ccache] if ccache else []
    result = subprocess.run(
        [*prefix, *command, f"-I{INCLUDE}", "-c", source.name, "-o", "out.o"],
        cwd=source.parent,
        capture_output=True,
        text=True,
        timeout=240,
        # The temporary folder's name must not keep ccache from recognising the same header.
        env={**os.environ, "CCACHE_NOHASHDIR": "1", "CCACHE_BASEDIR": str(source.parent)},
    )
    assert result.returncode == 0, f"{header}:\n{result.stdout}{result.stderr}"


@pytest.mark.parametrize("header", [h for h in HEADERS if is_host(h)])
def test_host_compiler(header: str, tmp_path: Path) -> None:
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler}")
    command = [compiler, "-std=c++20", "-O0", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]
    compile_alone(command, header, tmp_path / "alone.cpp")


@pytest.mark.parametrize("header", [h for h in HEADERS if is_device(h)])
def test_nvcc(header: str, tmp_path: Path) -> None:
    nvcc = find_nvcc()
    if nvcc is None:
        pytest.skip("no nvcc (the CUDA toolkit's compiler)")
    command = [nvcc, "-std=c++20", "-arch=sm_90", "-Werror", "all-warnings", "-Xcompiler", "-Wall"]
    compile_alone(command, header, tmp_path / "alone.cu")
