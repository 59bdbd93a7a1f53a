"""What CUDA memory meets over, without a GPU: the store that torch's rendezvous is given."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch.distributed as dist

from llcoll.memory import _Renumbered


def test_ranks_with_other_counts_of_earlier_exchanges_meet() -> None:
    """As torch does it: numbers of a process, set, wait, get. C++ calls the store from Python."""
    inner = dist.HashStore()
    ranks = [_Renumbered(inner) for _ in range(2)]
    first = (17, 4)  # rank 0 was in a rendezvous more than rank 1
    for step in range(3):
        for rank, store in enumerate(ranks):
            dist.PrefixStore("", store).set(f"X/{first[rank] + step}/{rank}", f"{rank}:{step}")
        for rank, store in enumerate(ranks):
            peer = 1 - rank
            key = f"X/{first[rank] + step}/{peer}"
            seen = dist.PrefixStore("", store)
            seen.wait([key])
            assert seen.check([key])
            assert seen.get(key) == f"{peer}:{step}".encode()
            assert seen.multi_get([key]) == [f"{peer}:{step}".encode()]


def test_other_keys_stay_as_they_are() -> None:
    inner = dist.HashStore()
    store = _Renumbered(inner)
    store.set("plain", "a")
    assert inner.get("plain") == b"a"
    assert store.add("count", 2) == 2
    assert inner.add("count", 1) == 3
    with pytest.raises(RuntimeError):
        dist.PrefixStore("", store).wait(["never/3/1"], timedelta(milliseconds=50))
