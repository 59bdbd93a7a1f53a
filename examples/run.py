"""Builds the examples against llcoll.include_path() and runs them, checked against torch.

python examples/run.py [--ranks 4]                                  # CPU
python -m llcoll.loopback -n 4 examples/run.py --device cuda    # GPU
python examples/run.py --device cuda --build-only DIR               # then --library DIR/NAME.so
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp
from torch.utils import cpp_extension

import llcoll

HERE = Path(__file__).resolve().parent
MODES = {"ll": 0, "sentinel": 2}
NUM_BLOCKS, PER_BLOCK = 4, 64  # elements of 16 bytes that a block gets from each rank per epoch
SIZES = (4, 1000, 16384)
NO_BIAS = 0


def build(device: str, folder: Path | None) -> Path:
    """The shared library with the ops torch.ops.llcoll_examples.*"""
    name = f"llcoll_examples_{device}"
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    flags = ["-std=c++20", "-O2", "-DTORCH_TARGET_VERSION=0x020b000000000000"]
    if device == "cuda":
        flags.append("-DUSE_CUDA")
        if not torch.cuda.is_available():  # built here for another machine
            os.environ.setdefault("TORCH_CUDA_ARCH_LIST", "9.0")
    directory = str(folder) if folder else cpp_extension._get_build_directory(name, verbose=False)
    cpp_extension.load(
        name,
        [str(HERE / ("binding.cu" if device == "cuda" else "binding.cpp"))],
        extra_include_paths=[llcoll.include_path(), str(HERE)],
        extra_cflags=flags,
        extra_cuda_cflags=flags,
        build_directory=directory,
        is_python_module=False,
    )
    return Path(directory, f"{name}.so")


def check_all(rank: int, device: torch.device, buffers: torch.Tensor, num_ranks: int) -> int:
    """Every mode and size, plain and fused, some in a row; the number of calls."""
    ops: Any = torch.ops.llcoll_examples
    calls = 0
    for idx, mode in enumerate(MODES.values()):
        addresses = buffers[idx].contiguous()
        for size in SIZES:
            bias = torch.linspace(-1, 1, size // 4 if size % 16 == 0 else size, device=device)
            for step in range(5):
                inputs = [
                    torch.sin(torch.arange(size, device=device) * (r + 1.0) + step)
                    for r in range(num_ranks)
                ]
                want = inputs[0].clone()
                for other in inputs[1:]:
                    want += other  # rank order: the same bits
                got = inputs[rank].clone()
                arguments = (addresses, rank, mode, PER_BLOCK, NUM_BLOCKS)
                ops.all_reduce_(got, bias[:NO_BIAS], *arguments)
                if not torch.equal(got, want):
                    raise AssertionError(f"mode {mode}, size {size}, step {step}: wrong sum")
                fused = inputs[rank].clone()
                ops.all_reduce_(fused, bias, *arguments)
                summed = (want.view(-1, bias.numel()) + bias).view(-1)
                reference = torch.nn.functional.gelu(summed, approximate="tanh")
                torch.testing.assert_close(fused, reference, rtol=1e-5, atol=1e-5)
                calls += 2
    return calls


def bytes_of(mode: int, num_ranks: int) -> int:
    needed = torch.ops.llcoll_examples.buffer_bytes(mode, num_ranks, PER_BLOCK, NUM_BLOCKS)
    return (int(needed) + 255) // 256 * 256


def init(buffer: torch.Tensor, mode: int, num_ranks: int) -> None:
    torch.ops.llcoll_examples.init_(buffer, mode, num_ranks, PER_BLOCK, NUM_BLOCKS)


def cpu_rank(rank: int, num_ranks: int, library: str, memory: list[torch.Tensor]) -> None:
    torch.set_num_threads(1)
    torch.ops.load_library(library)
    # Shared memory that each rank maps where it likes: addresses are of this process.
    buffers = torch.tensor([[row.data_ptr() for row in per_mode] for per_mode in memory])
    calls = check_all(rank, torch.device("cpu"), buffers, num_ranks)
    print(f"rank {rank}: {calls} calls right", flush=True)


def run_on_cpu(num_ranks: int, library: Path) -> None:
    torch.ops.load_library(str(library))
    memory = []
    for mode in MODES.values():
        rows = torch.zeros(num_ranks, bytes_of(mode, num_ranks), dtype=torch.uint8).share_memory_()
        for row in rows:
            init(row, mode, num_ranks)
        memory.append(rows)
    # Spawned behind the init: that is the barrier before the first message.
    mp.spawn(cpu_rank, args=(num_ranks, str(library), memory), nprocs=num_ranks)


def run_on_gpu(library: Path) -> None:
    import torch.distributed as dist
    from torch.distributed import _symmetric_memory as symmetric

    torch.ops.load_library(str(library))
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("gloo")
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    held, rows = [], []
    for mode in MODES.values():
        buffer = symmetric.empty(bytes_of(mode, num_ranks), dtype=torch.uint8, device=device)
        handle = symmetric.rendezvous(buffer, dist.group.WORLD.group_name)
        init(buffer, mode, num_ranks)
        held.append((buffer, handle))
        rows.append([int(p) for p in handle.buffer_ptrs])
    torch.cuda.synchronize()
    dist.barrier()
    calls = check_all(rank, device, torch.tensor(rows), num_ranks)
    torch.cuda.synchronize()
    dist.barrier()  # a peer may still store into our buffers
    print(f"rank {rank}: {calls} calls right", flush=True)
    dist.destroy_process_group()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--ranks", type=int, default=2, help="CPU: how many to start")
    parser.add_argument("--build-only", type=Path, metavar="DIR")
    parser.add_argument("--library", type=Path, help="built before")
    args = parser.parse_args()
    library = args.library or build(args.device, args.build_only)
    if args.build_only:
        print(library)
    elif args.device == "cpu":
        run_on_cpu(args.ranks, library)
    else:
        run_on_gpu(library)
    return 0


if __name__ == "__main__":
    sys.exit(main())
