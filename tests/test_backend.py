"""torch.distributed on the backend "llcoll", on the CPU."""

from __future__ import annotations

from collections.abc import Iterator

import harness
import pytest


@pytest.fixture(params=[2, 3])
def ranks(request: pytest.FixtureRequest) -> Iterator[harness.Ranks]:
    yield from joined(request.param, "llcoll")


def joined(world: int, backend: str) -> Iterator[harness.Ranks]:
    with harness.Ranks(world, group=False) as ranks:
        home = harness.server()
        names = ranks.results(
            "jobs_backend",
            "join",
            world,
            home.store.port,
            f"backend{next(home.names)}",
            backend,
            per_rank=[(rank,) for rank in range(world)],
            timeout=90,
        )
        assert names == ["LlcollGroup"] * world
        yield ranks


def test_collectives(ranks: harness.Ranks) -> None:
    ranks.results("jobs_backend", "collectives")
    ranks.results("jobs_backend", "data_parallel")
    ranks.results("jobs_backend", "tensor_parallel")
    ranks.results("jobs_backend", "leave")


def test_unserved() -> None:
    for ranks in joined(2, "llcoll"):
        ranks.results("jobs_backend", "unserved")


def test_mixed_backends() -> None:
    """The other way of naming it; the CPU's part is Gloo's by the program's own wish."""
    for ranks in joined(2, "cpu:gloo,cuda:llcoll"):
        ranks.results("jobs_backend", "data_parallel")
