"""Where a measuring command runs: CUDA where it can, through the loopback launcher where ranks
outnumber GPUs, else the CPU; always with words that say which and why."""

from __future__ import annotations

import argparse
import datetime
import os
import subprocess
import sys
import time
from dataclasses import dataclass

# Asks the driver's library instead of making a CUDA context: the loopback launcher's MPS daemon
# must come before the first context. Read by torch on each query.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")

import torch
import torch.distributed as dist

from .. import _ops

LOOPBACK_LIMIT = datetime.timedelta(hours=2)
STATUS_KEY, SEEN_KEY = "llcoll_bench_status", "llcoll_bench_seen"
OWN_TO_TORCHRUN = ("TORCHELASTIC_", "TORCH_NCCL_", "GROUP_", "ROLE_", "LOCAL_", "MASTER_")


@dataclass(frozen=True)
class Choice:
    device: torch.device
    words: str
    process_group_backend: str


def cpu(args: argparse.Namespace, reason: str) -> Choice:
    """The CPU backend. Ranks are pinned one to a core where there are enough cores."""
    if getattr(args, "mode", "") == "graph":
        sys.exit("llcoll.bench: --mode graph needs CUDA: " + reason)
    cores = sorted(os.sched_getaffinity(0))
    num_local = int(os.environ["LOCAL_WORLD_SIZE"])
    pinned = not args.no_pin and 1 < num_local <= len(cores)
    if pinned:
        os.sched_setaffinity(0, {cores[int(os.environ["LOCAL_RANK"])]})
    torch.set_num_threads(1)
    pin_words = "each rank pinned to a core" if pinned else "ranks not pinned"
    return Choice(torch.device("cpu"), f"CPU shared memory ({reason}; {pin_words})", "gloo")


def run_loopback(module: str, argv: list[str], num_ranks: int) -> int:
    """Local rank 0 runs the whole job again under the loopback launcher; the others wait for its
    exit status and return the same, so that torchrun sees one outcome."""
    store, rank, _ = next(dist.rendezvous("env://", timeout=LOOPBACK_LIMIT))
    if rank != 0:
        status = int(store.get(STATUS_KEY))
        store.add(SEEN_KEY, 1)
        return status
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(OWN_TO_TORCHRUN) and name not in ("RANK", "WORLD_SIZE")
    }
    command = [sys.executable, "-m", "llcoll.loopback", "-n", str(num_ranks)]
    status = 1
    try:
        job = subprocess.run([*command, "-m", module, *argv], env=env, check=False)
        status = job.returncode
    finally:
        store.set(STATUS_KEY, str(status))
    # Where rank 0 holds the store, it must outlive the others' reads.
    deadline = time.monotonic() + 10
    while store.add(SEEN_KEY, 0) < num_ranks - 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    return status


def choose(args: argparse.Namespace, argv: list[str], module: str = "llcoll.bench") -> Choice | int:
    """A place to run, or the exit status of the job that ran in this one's stead."""
    if args.device == "cpu":
        return cpu(args, "asked for")
    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    num_ranks, num_local = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
    in_loopback = bool(os.environ.get("LLCOLL_LOOPBACK"))
    reason = ""
    if num_gpus == 0:
        reason = "torch sees no GPU"
    elif _ops.CUDA_PROBLEM is not None:
        reason = f"{num_gpus} GPU seen, but {_ops.CUDA_PROBLEM}"
    elif num_gpus < num_local and not in_loopback and num_ranks != num_local:
        reason = f"{num_gpus} GPU for {num_local} ranks of a node: loopback takes one node only"
    if reason:
        if args.device == "cuda":
            sys.exit(f"{module}: --device cuda: {reason}")
        return cpu(args, reason)
    if num_gpus < num_local and not in_loopback:
        if int(os.environ["RANK"]) == 0:
            print(
                f"# {num_local} ranks on {num_gpus} GPU: starting again as "
                f"python -m llcoll.loopback -n {num_ranks} -m {module} {' '.join(argv)}",
                flush=True,
            )
        return run_loopback(module, argv, num_ranks)
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank % num_gpus)
    torch.cuda.set_device(device)
    name = torch.cuda.get_device_name(device)
    if in_loopback or num_gpus < num_local:
        return Choice(device, f"CUDA loopback, {num_local} ranks on {num_gpus} x {name}", "gloo")
    return Choice(device, f"CUDA, one GPU a rank ({name})", "cpu:gloo,cuda:nccl")
