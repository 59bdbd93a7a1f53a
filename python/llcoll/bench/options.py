"""llcoll.bench's flags: nccl-tests', and ours."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from .. import _C

TYPES = {
    "float": torch.float32,
    "double": torch.float64,
    "half": torch.float16,
    "bfloat16": torch.bfloat16,
    "fp8e4m3": torch.float8_e4m3fn,
    "fp8e5m2": torch.float8_e5m2,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "int32": torch.int32,
    "int64": torch.int64,
}
TYPES |= {str(dtype).removeprefix("torch."): dtype for dtype in TYPES.values()}
MODES = ("eager", "graph", "plan", "in-kernel")
ABOUT = """\
The main job: `torchrun --nproc-per-node 2 -m llcoll.bench [flags]`.

Flags and table follow nccl-tests. Every size is checked first, in place and out of place, with
inputs whose result is exact in the tensor's type: a single wrong bit makes the exit status 1.
Contenders take turns in every round, over several shifted buffers. Times are the slowest rank's:
the median over rounds of the mean time of a call."""


def parse_size(text: str) -> int:
    """8, 64K, 1M, 2G."""
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    number, unit = (text[:-1], text[-1].upper()) if text[-1:].isalpha() else (text, "")
    if not number.isdigit() or unit not in ("", *units):
        raise argparse.ArgumentTypeError(f"{text!r} is not a size like 8, 64K or 16M")
    return int(number) * units.get(unit, 1)


def words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def add_place(parser: argparse.ArgumentParser) -> None:
    """The flags that device.choose() reads."""
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--no-pin", action="store_true", help="CPU: leave ranks to the scheduler")


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "llcoll.bench", description=ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("-b", "--minbytes", type=parse_size, default=8)
    add("-e", "--maxbytes", type=parse_size, default=16 << 20)
    add("-f", "--stepfactor", type=int, default=2)
    add("-n", "--iters", type=int, default=200, help="timed calls per size, contender and form")
    add("-w", "--warmup_iters", type=int, default=20)
    add("-c", "--check", type=int, choices=(0, 1), default=1)
    add("-o", "--op", choices=_C.reduce_ops(), default="sum")
    add("-d", "--datatype", "--dtype", choices=sorted(TYPES), default="float")
    add("-G", "--cudagraph", type=int, default=0, metavar="N", help="--mode graph, N replays")
    add("--mode", choices=MODES, default="eager")
    add(
        "--algorithm",
        type=words,
        default=["auto"],
        help="one or several, comma-separated, or `all`",
    )
    add("--compare", type=words, default=[], help="peers, comma-separated, or `all`")
    add("--regret", action="store_true", help="how far auto is from the best that it may pick")
    add("--symmetric", action="store_true", help="tensors of llcoll.empty")
    add("--rounds", type=int, default=11, help="turns that each contender gets at a size")
    add("--json", type=Path, metavar="FILE")
    add("--csv", type=Path, metavar="FILE")
    add("--plot", type=Path, metavar="FILE", help="latency against size (.png, .svg, .pdf)")
    add_place(parser)
    return parser


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = make_parser()
    args = parser.parse_args(argv)
    least = {"stepfactor": 2, "iters": 1, "warmup_iters": 0, "minbytes": 1, "cudagraph": 0}
    for name, value in {**least, "rounds": 1}.items():
        if getattr(args, name) < value:
            parser.error(f"--{name} {getattr(args, name)} is below {value}")
    if args.cudagraph:
        if args.mode not in ("eager", "graph"):
            parser.error(f"-G is --mode graph, not {args.mode}")
        args.mode = "graph"
    known = _C.algorithms()
    if args.algorithm == ["all"]:
        args.algorithm = None  # those that may be picked: depends on the machine
    elif not args.algorithm or not set(args.algorithm) <= set(known):
        parser.error(f"--algorithm {','.join(args.algorithm)}: choose from {', '.join(known)}, all")
    return args


def sizes(args: argparse.Namespace) -> list[int]:
    """Bytes, each a multiple of the element size."""
    item_bytes = TYPES[args.datatype].itemsize
    result: list[int] = []
    num_bytes = args.minbytes
    while num_bytes <= args.maxbytes:
        rounded = max(num_bytes // item_bytes, 1) * item_bytes
        if not result or rounded > result[-1]:
            result.append(rounded)
        num_bytes *= args.stepfactor
    return result
