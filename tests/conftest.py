"""One fork server and one store per pytest process, closed with everything they started."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

# A table that this machine's user has tuned must not change what is tested.
os.environ.setdefault("LLCOLL_TUNING_FILE", "none")
# Tests of timeouts leave no flight records behind; those that read them name a folder.
os.environ.setdefault("LLCOLL_DUMP_DIR", "none")

import cases
import harness
import pytest
import torch.distributed as dist

import llcoll


@pytest.fixture(scope="session", autouse=True)
def close_ranks() -> Iterator[None]:
    yield
    harness.close()
    cases.drop_shared_data()


@pytest.fixture(scope="module")
def one_rank() -> Iterator[None]:
    """This process alone as the default group, with a communicator on the CPU."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    with llcoll.init(device="cpu"):
        yield
    dist.destroy_process_group()


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Inside a file, tests of one world size run together: they share a pool of ranks."""
    files = {item.path: idx for idx, item in reversed(list(enumerate(items)))}

    def world(item: Any) -> int:
        return getattr(item, "callspec", None) and item.callspec.params.get("world", 0) or 0

    items.sort(key=lambda item: (files[item.path], world(item)))
