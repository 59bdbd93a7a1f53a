"""The latency gate: machine code of the small-message kernels against a recorded figure.

    python .ci/sass.py             compares; exit 1 where a kernel got worse
    python .ci/sass.py --update    records what is there (tests/sass.json): one line in a commit

A compiler, or a harmless-looking change, can cost a microsecond unnoticed: more instructions to
fetch, a spill, a 128-bit packet split in two. Compiles tests/cpp/small_kernels.cu with setup.py's
flags, or looks at what --library names. Needs nvcc, cuobjdump and nvdisasm: of the CUDA toolkit, of
PyPI's nvidia-cuda-cuobjdump, or of triton, which comes with torch. Exit 77: skipped, with the
reason in words.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "tests" / "cpp" / "small_kernels.cu"
# As setup.py has them, where they change the code.
FLAGS = ["-std=c++20", "-O3", "--fmad=false", f"-I{ROOT}/csrc/include", f"-I{ROOT}/csrc"]
RECORDED = ROOT / "tests" / "sass.json"
ARCH = "sm_90"
SKIPPED = 77
# The kernels of messages that each thread handles at once: the unrolled sums of the model types.
WANTED = re.compile(r"all_reduce_kernel<\w+, \w+, (Float32|BFloat16), [248], SumOp, true>")
MORE_INSTRUCTIONS = 1.03
SOME_INSTRUCTIONS = 4
MORE_REGISTERS = 2
Figures = dict[str, int]


class Skip(Exception):
    """Why there is nothing to compare."""


def folders() -> Iterator[Path]:
    """Where the tools may be, besides PATH."""
    yield Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "bin"
    for package in ("nvidia", "triton"):
        spec = importlib.util.find_spec(package)
        for place in (spec.submodule_search_locations or []) if spec else []:
            yield from (tool.parent for tool in Path(place).glob("**/bin/cuobjdump"))


def find_tools() -> tuple[str, dict[str, str]]:
    """cuobjdump, and an environment in which it finds nvdisasm."""
    for folder in [*map(Path, os.environ.get("PATH", "").split(os.pathsep)), *folders()]:
        if (folder / "cuobjdump").is_file() and (folder / "nvdisasm").is_file():
            path = f"{folder}{os.pathsep}{os.environ.get('PATH', '')}"
            return str(folder / "cuobjdump"), {**os.environ, "PATH": path}
    raise Skip("no cuobjdump with nvdisasm beside it (CUDA toolkit, or pip install triton)")


def dump(tool: tuple[str, dict[str, str]], library: Path, *flags: str) -> str:
    result = subprocess.run(
        [tool[0], "--gpu-architecture", ARCH, *flags, str(library)],
        env=tool[1],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    if result.returncode != 0:
        raise Skip(f"{tool[0]}: {result.stderr.strip()[:300]}")
    return result.stdout


def short(demangled: str) -> str:
    """Without namespaces, return type and parameters."""
    return re.sub(r"\b(llcoll|portable)::", "", demangled).removeprefix("void ").split("(Kernel")[0]


def kernels(text: str) -> dict[str, tuple[str, Figures]]:
    """Short name -> mangled name and what the compiler says, of `cuobjdump -res-usage`."""
    found = re.findall(r"Function ([^\s:]+):\s*\n\s*(REG:.*)", text)
    names = subprocess.run(
        ["c++filt"],
        input="\n".join(name for name, _ in found),
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout.splitlines()
    result = {}
    for (mangled, usage), demangled in zip(found, names, strict=True):
        if WANTED.fullmatch(short(demangled)):
            numbers = {key: int(value) for key, value in re.findall(r"(\w+):(\d+)", usage)}
            figures = {"registers": numbers["REG"], "stack": numbers["STACK"]}
            result[short(demangled)] = (mangled, figures)
    return result


def instructions(text: str) -> dict[str, Figures]:
    """Mangled name -> counts, of `cuobjdump -sass`."""
    result: dict[str, Figures] = {}
    for part in text.split("Function : ")[1:]:
        lines = re.findall(r"^\s*/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;", part, re.MULTILINE)
        # Behind the last jump to itself there is only padding.
        while lines and lines[-1].split()[0] in ("NOP", "BRA"):
            lines.pop()
        codes = [re.sub(r"^@!?U?P\w+\s+", "", line).split()[0] for line in lines]
        result[part.split("\n", 1)[0].strip()] = {
            "instructions": len(codes),
            "loads_128": sum(c.startswith(("LD.", "LDG.")) and ".128" in c for c in codes),
            "stores_128": sum(c.startswith(("ST.", "STG.")) and ".128" in c for c in codes),
            "spills": sum(c.startswith(("LDL", "STL")) for c in codes),
        }
    return result


def find_nvcc() -> str:
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    nvcc = shutil.which("nvcc") or shutil.which("nvcc", path=f"{home}/bin")
    if nvcc is None:
        raise Skip("no nvcc (looked at PATH, CUDA_HOME and /usr/local/cuda)")
    return nvcc


def compile_kernels(folder: Path) -> Path:
    """With ccache where there is one. A failure is an error, not a reason to skip."""
    target = folder / "small_kernels.o"
    ccache = shutil.which("ccache")
    command = [*([ccache] if ccache else []), find_nvcc(), *FLAGS, f"-arch={ARCH}"]
    subprocess.run([*command, "-c", str(SOURCE), "-o", str(target)], check=True, timeout=600)
    return target


def measure(library: Path | None) -> dict[str, Figures]:
    if shutil.which("c++filt") is None:
        raise Skip("no c++filt (binutils)")
    tool = find_tools()
    if library is not None and not library.exists():
        raise Skip(f"no {library.name}: llcoll was built without CUDA")
    with tempfile.TemporaryDirectory() as folder:
        target = library or compile_kernels(Path(folder))
        found = kernels(dump(tool, target, "-res-usage"))
        if not found:
            raise Skip(f"{target.name} has no {ARCH} kernels of this kind")
        mangled = ",".join(name for name, _ in found.values())
        counts = instructions(dump(tool, target, "-sass", "-fun", mangled))
    return {name: {**figures, **counts[key]} for name, (key, figures) in sorted(found.items())}


def compare(recorded: dict[str, Figures], found: dict[str, Figures]) -> tuple[list[str], list[str]]:
    """What got worse; what else to know."""
    worse, notes = [], []
    for name in sorted(recorded.keys() | found.keys()):
        old, new = recorded.get(name), found.get(name)
        if old is None or new is None:
            worse.append(f"{name}: {'not recorded' if old is None else 'gone'}")
            continue
        limit = old["instructions"] * MORE_INSTRUCTIONS + SOME_INSTRUCTIONS
        changes = []
        if new["instructions"] > limit:
            changes.append("instructions")
        if new["registers"] > old["registers"] + MORE_REGISTERS:
            changes.append("registers")
        changes += [key for key in ("spills", "stack") if new[key] > old[key]]
        changes += [key for key in ("loads_128", "stores_128") if new[key] < old[key]]
        worse += [f"{name}: {key} {old[key]} -> {new[key]}" for key in changes]
        if not changes and new["instructions"] < old["instructions"] / MORE_INSTRUCTIONS:
            notes.append(f"{name}: instructions {old['instructions']} -> {new['instructions']}")
    return worse, notes


def compiler() -> str:
    command = [find_nvcc(), "--version"]
    text = subprocess.run(command, capture_output=True, text=True, timeout=60).stdout
    found = re.search(r"V(\d+\.\d+\.\d+)", text)
    return f"nvcc {found[1]}" if found else "unknown"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--update", action="store_true")
    parser.add_argument("--library", type=Path, help="a built _cuda.abi3.so")
    parser.add_argument("--recorded", type=Path, default=RECORDED)
    args = parser.parse_args(argv)
    try:
        version = compiler()
        recorded: dict[str, Any] = {}
        if not args.update:
            if not args.recorded.exists():
                raise Skip(f"nothing recorded in {args.recorded}: python .ci/sass.py --update")
            recorded = json.loads(args.recorded.read_text(encoding="utf-8"))
            if recorded["compiler"] != version:
                raise Skip(f"recorded with {recorded['compiler']}, here is {version}")
        found = measure(args.library)
        if args.update:
            data: dict[str, Any] = {"version": 1, "arch": ARCH, "compiler": version}
            lines = [f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in found.items()]
            head = json.dumps(data, indent=1)[:-2]
            text = head + ',\n "kernels": {\n' + ",\n".join(lines) + "\n }\n}\n"
            args.recorded.write_text(text, encoding="utf-8")
            print(f"sass: {len(found)} kernels recorded in {args.recorded}")
            return 0
    except Skip as reason:
        print(f"sass: SKIPPED: {reason}")
        return SKIPPED
    worse, notes = compare(recorded["kernels"], found)
    for note in notes:
        print(f"sass: better: {note}")
    for line in worse:
        print(f"sass: WORSE: {line}")
    if worse or notes:
        print("sass: if this is meant: python .ci/sass.py --update, and say why in the commit")
    print(f"sass: {len(found)} kernels, {len(worse)} worse, {len(notes)} better")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
