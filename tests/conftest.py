"""One fork server and one store per pytest process, closed with everything they started."""

from __future__ import annotations

from collections.abc import Iterator

import harness
import pytest


@pytest.fixture(scope="session", autouse=True)
def close_ranks() -> Iterator[None]:
    yield
    harness.close()


@pytest.fixture(scope="session")
def device() -> str:
    return harness.DEVICE
