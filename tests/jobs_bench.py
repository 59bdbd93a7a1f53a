"""What ranks run for test_bench.py and test_tune.py: a command's main(), as torchrun starts it."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
from typing import Any


def _join(rank: int, world_size: int, port: int) -> None:
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def command(
    state: dict[str, Any], rank: int, world_size: int, port: int, module: str, argv: list[str]
) -> tuple[int, str]:
    """Exit status and standard output."""
    _join(rank, world_size, port)
    main = importlib.import_module(module).main
    with contextlib.redirect_stdout(io.StringIO()) as out:
        status = main([*argv, "--device", "cpu"])
    return status, out.getvalue()


def quick(state: dict[str, Any], rank: int, world_size: int, port: int, *rest: Any) -> Any:
    """command() for the model and the tuner, with few and short measurements."""
    from llcoll import model

    model.PROBE_SIZES, model.VERIFY_SIZES = (64, 4096, 32768), (8, 1024)
    model.TARGET_ROUND_US, model.ROUNDS = 50.0, 3
    return command(state, rank, world_size, port, *rest)


def wrong_result(
    state: dict[str, Any], rank: int, world_size: int, port: int, argv: list[str]
) -> tuple[int, str]:
    """The bench, on rank 1 with one element more than the sum has."""
    import torch

    from llcoll.bench import contenders

    calls = contenders.Llcoll.calls

    def bad(self: Any, cell: Any, x: torch.Tensor, out: torch.Tensor) -> Any:
        right, in_place = calls(self, cell, x, out)

        def wrong() -> None:
            in_place()
            x[0] += 1

        return right, wrong if rank == 1 else in_place

    contenders.Llcoll.calls = bad
    return command(state, rank, world_size, port, "llcoll.bench", argv)
