"""What ranks run for test_tables.py."""

from __future__ import annotations

from typing import Any

import torch

import llcoll
from llcoll import _C


def init(state: dict[str, Any]) -> dict[str, str]:
    with llcoll.init(device="cpu") as communicator:
        name = communicator.group_name
        total = llcoll.all_reduce(torch.ones(5000) * (communicator.rank + 1)).sum().item()
        expected = 5000 * communicator.world_size * (communicator.world_size + 1) / 2
        assert total == expected, (total, expected)
        picks = {str(n): _C.resolve(name, n, "uint8", "sum", "auto") for n in (8, 100, 5000)}
        return {"source": communicator.table.source, "hash": communicator.table.hash, **picks}
