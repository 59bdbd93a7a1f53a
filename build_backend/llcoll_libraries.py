"""The shared libraries for programs without torch, beside the extensions: python/llcoll/lib."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

CSRC = Path("csrc")
# Of csrc/*.cpp, what knows torch or Python; the rest is the core.
TORCH = ("ops", "python", "plan")


def core_sources(kernels: str) -> list[str]:
    """Everything but the kernels, which are compiled once per instruction set."""
    of_kernels = set(CSRC.glob(kernels))
    core = [path for path in CSRC.glob("*.cpp") if not path.name.startswith(TORCH)]
    return sorted(str(path) for path in [*core, *CSRC.glob("cpu/*.cpp")] if path not in of_kernels)


def link_library(build, name: str, sources: list[str], objects: list[str], flags, libraries=()):
    """lib<name>.so, in llcoll/lib beside the extensions; finds the others by its own folder."""
    compiled = build.compiler.compile(
        sources,
        output_dir=str(Path(build.build_temp) / "lib"),
        include_dirs=[str((CSRC / "include").resolve()), str(CSRC.resolve())],
        extra_postargs=list(flags),
        depends=[str(path) for path in [*CSRC.rglob("*.h")]],
    )
    folder = Path(build.get_ext_fullpath("llcoll._C")).parent / "lib"
    folder.mkdir(parents=True, exist_ok=True)
    output = folder / f"lib{name}.so"
    # A program that runs has the old file mapped.
    output.unlink(missing_ok=True)
    build.compiler.link_shared_object(
        [*compiled, *objects],
        str(output),
        libraries=[*libraries, "dl", "pthread"],
        library_dirs=[str(folder)],
        extra_postargs=["-Wl,-s", f"-Wl,-soname,lib{name}.so", "-Wl,-rpath,$ORIGIN"],
        target_lang="c++",
    )


def build_libraries(build, kernels: str, kernel_objects: list[str], flags: list[str]) -> None:
    capi = sorted(str(path) for path in CSRC.glob("capi/*.cpp"))
    link_library(build, "llcoll", [*core_sources(kernels), *capi], kernel_objects, flags)
    front = sorted(str(path) for path in CSRC.glob("nccl/*.cpp"))
    link_library(build, "llcoll_nccl", front, [], flags, libraries=["llcoll"])


def copy_libraries(source: Path, target: Path) -> None:
    """From one package folder to another: the in-place build's last step."""
    (target / "lib").mkdir(exist_ok=True)
    for library in sorted((source / "lib").glob("*.so")):
        # Replaced, not written over: a program that runs has the old file mapped.
        new = target / "lib" / f".{library.name}.new"
        shutil.copy2(library, new)
        os.replace(new, target / "lib" / library.name)
