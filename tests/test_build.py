"""The build's switches and the wheel: what it is called, what is in it, what it refuses.

LLCOLL_TEST_WHEEL names a wheel that was already built from this tree; else one is built, CPU only.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BUILD_FILES = ["setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "build_backend"]
COPIED = [*BUILD_FILES, "csrc", "python", "requirements-dev.txt"]
MIB = 1 << 20


def copy_tree(target: Path) -> Path:
    ignore = shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info")
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=ignore)
        elif source.exists():
            shutil.copy(source, target / name)
    return target


def run_setup(tree: Path, *arguments: str, timeout: float = 60, **switches: str):
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("LLCOLL_")}
    return subprocess.run(
        [sys.executable, "setup.py", *arguments],
        cwd=tree,
        env={**inherited, **switches},
        capture_output=True,
        text=True,
        timeout=timeout,
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    given = os.environ.get("LLCOLL_TEST_WHEEL")
    if given:
        return Path(given)
    tree = copy_tree(tmp_path_factory.mktemp("wheel"))
    result = run_setup(tree, "-q", "bdist_wheel", timeout=280, LLCOLL_CUDA="0")
    assert result.returncode == 0, result.stdout + result.stderr
    (built,) = (tree / "dist").glob("*.whl")
    return built


def test_tag_serves_every_python(wheel: Path) -> None:
    assert "-cp310-abi3-linux" in wheel.name


def test_small(wheel: Path) -> None:
    assert wheel.stat().st_size < 40 * MIB


def test_holds_headers_and_no_simulator(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    public = (ROOT / "csrc" / "include" / "llcoll").iterdir()
    headers = {f"llcoll/include/llcoll/{p.name}" for p in public if p.suffix in (".h", ".cuh")}
    assert headers and headers <= names
    assert "llcoll/_C.abi3.so" in names
    assert "llcoll/__init__.py" in names and "llcoll/py.typed" in names
    shared = {name for name in names if name.endswith(".so")}
    libraries = {f"llcoll/lib/lib{name}.so" for name in ("llcoll", "llcoll_cuda", "llcoll_nccl")}
    assert shared <= {"llcoll/_C.abi3.so", "llcoll/_cuda.abi3.so", *libraries}
    assert {"llcoll/lib/libllcoll.so", "llcoll/lib/pkgconfig/llcoll.pc"} <= names
    assert "llcoll/lib/cmake/llcoll/llcoll-config.cmake" in names
    assert not [name for name in names if "_sim" in name]


def test_shared_objects_are_portable(wheel: Path, tmp_path: Path) -> None:
    readelf = shutil.which("readelf")
    if readelf is None:
        pytest.skip("no readelf (binutils)")
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if not name.endswith(".so"):
                continue
            path = Path(archive.extract(name, tmp_path))
            dynamic = subprocess.run(
                [readelf, "-d", str(path)], capture_output=True, text=True, timeout=30, check=True
            ).stdout
            # Either would tie the wheel to one version of Python or torch.
            assert "libpython" not in dynamic and "libtorch_python" not in dynamic, name
            assert str(ROOT).encode() not in path.read_bytes(), f"{name} holds a build path"


def test_release_wheel_with_simulator_is_refused(tmp_path: Path) -> None:
    tree = copy_tree(tmp_path)
    (tree / "csrc" / "sim").mkdir(exist_ok=True)
    (tree / "csrc" / "sim" / "any.cpp").write_text("")
    result = run_setup(tree, "-q", "bdist_wheel", LLCOLL_SIM="1", LLCOLL_CUDA="0")
    assert result.returncode != 0
    assert "LLCOLL_SIM=1 is for development installs" in result.stderr
    assert not list(tree.glob("dist/*.whl"))


def test_build_says_what_it_chose(tmp_path: Path) -> None:
    result = run_setup(ROOT, "--version", LLCOLL_CUDA="0")
    assert result.returncode == 0, result.stderr
    assert "llcoll: CUDA off: LLCOLL_CUDA=0" in result.stderr
    assert "llcoll: simulator off: LLCOLL_SIM=0" in result.stderr
    automatic = run_setup(ROOT, "--version", LLCOLL_CUDA="auto")
    assert automatic.returncode == 0, automatic.stderr
    assert "llcoll: CUDA o" in automatic.stderr


@pytest.mark.parametrize(
    ("switches", "words"),
    [
        ({"LLCOLL_CUDA": "yes"}, "LLCOLL_CUDA='yes'"),
        ({"LLCOLL_SIM": "2"}, "LLCOLL_SIM='2'"),
        ({"LLCOLL_CUDA": "1", "CUDA_HOME": "/nonexistent"}, "LLCOLL_CUDA=1, but"),
    ],
)
def test_wrong_switches(switches: dict[str, str], words: str) -> None:
    result = run_setup(ROOT, "--version", **switches)
    assert result.returncode != 0
    assert words in result.stderr


def test_no_simulator_sources(tmp_path: Path) -> None:
    tree = copy_tree(tmp_path)
    shutil.rmtree(tree / "csrc" / "sim", ignore_errors=True)
    result = run_setup(tree, "--version", LLCOLL_SIM="1", LLCOLL_CUDA="0")
    assert result.returncode != 0
    assert "csrc/sim holds no .cpp file" in result.stderr
