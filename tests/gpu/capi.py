"""The C interface on device memory: build/capi_test_cuda in each rank, all its modes.

Built where gcc and the CUDA headers are: tests/gpu/capi.py --build.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "build" / "capi_test_cuda"
LIB = ROOT / "python" / "llcoll" / "lib"
LIMIT_S = 25


def build() -> None:
    cuda = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
    sources = [ROOT / "tests" / "cpp" / "capi_test.c", ROOT / "examples" / "c" / "tcp_bootstrap.c"]
    command = ["gcc", "-std=c99", "-O1", "-Wall", "-DLLCOLL_TEST_CUDA", *map(str, sources)]
    command += [f"-I{ROOT / 'csrc' / 'include'}", f"-I{cuda / 'include'}", f"-L{LIB}", "-lllcoll"]
    command += [f"-L{cuda / 'lib64'}", "-lcudart_static", "-lstdc++", "-lrt", "-ldl", "-lpthread"]
    PROGRAM.parent.mkdir(exist_ok=True)
    # Found from build/, wherever the tree is.
    rpath = "-Wl,-rpath,$ORIGIN/../python/llcoll/lib"
    subprocess.run([*command, rpath, "-lm", "-o", str(PROGRAM)], check=True, timeout=120)


def main() -> int:
    if sys.argv[1:] == ["--build"]:
        build()
        return 0
    rank, world = os.environ["RANK"], os.environ["WORLD_SIZE"]
    first_port = int(os.environ["MASTER_PORT"]) % 20000 + 30000
    for idx, mode in enumerate(("all", "settings", "abort", "timeout", "streams")):
        command = [str(PROGRAM), mode, rank, world, str(first_port + idx)]
        subprocess.run(command, check=True, timeout=LIMIT_S)
        print(f"rank {rank}: {mode} passed", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
