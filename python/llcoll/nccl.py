"""Runs a program that speaks NCCL with llcoll's front before its NCCL.

    python -m llcoll.nccl [--max-bytes N] [--log] [--nccl PATH] [--] program args...

Small collectives of communicators whose ranks reach each other's memory go to llcoll, everything
else to the NCCL that the program brings (or PATH): docs/nccl-front.md. All ranks must be started
alike. It becomes the program: nothing of it stays but LD_PRELOAD and the variables it sets.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

LIBRARY = Path(__file__).parent / "lib" / "libllcoll_nccl.so"
STATUS_CANNOT_START = 127


def parse_args(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m llcoll.nccl",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--max-bytes", metavar="N", help="largest message for llcoll; 0: none, 64K, 1M (default)"
    )
    parser.add_argument("--log", action="store_true", help="at exit, how many calls went where")
    parser.add_argument("--nccl", type=Path, metavar="PATH", help="the libnccl.so to run with")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="program args...")
    args = parser.parse_args(argv)
    if args.command[:1] == ["--"]:
        del args.command[0]
    if not args.command:
        parser.error("no program given")
    if args.nccl is not None and not args.nccl.is_file():
        parser.error(f"--nccl {args.nccl}: no such file")
    return args


def environment_for(args: argparse.Namespace, inherited: dict[str, str]) -> dict[str, str]:
    """What the program is started with."""
    env = dict(inherited)
    libraries = [str(LIBRARY)]
    if args.nccl is not None:
        # Its own name in the order of libraries, so that the program's "libnccl.so.2" is this one.
        libraries.append(str(args.nccl.resolve()))
    if env.get("LD_PRELOAD"):
        libraries.append(env["LD_PRELOAD"])
    env["LD_PRELOAD"] = " ".join(libraries)
    if args.max_bytes is not None:
        env["LLCOLL_NCCL_MAX_BYTES"] = args.max_bytes
    if args.log:
        env["LLCOLL_LOG"] = "1"
    # A kernel that is loaded at its first launch waits for the GPU, where a peer's waits for us.
    env.setdefault("CUDA_MODULE_LOADING", "EAGER")
    return env


def main(argv: list[str]) -> int:
    args = parse_args(argv)
    if not LIBRARY.is_file():
        print(f"llcoll.nccl: {LIBRARY} is not there: build llcoll again", file=sys.stderr)
        return STATUS_CANNOT_START
    try:
        os.execvpe(args.command[0], args.command, environment_for(args, dict(os.environ)))
    except OSError as error:
        print(f"llcoll.nccl: {args.command[0]}: {error.strerror}", file=sys.stderr)
    return STATUS_CANNOT_START


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
