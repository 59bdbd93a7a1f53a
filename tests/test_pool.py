"""The allocator behind llcoll.empty: plain numbers, no GPU."""

import gc

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from llcoll import LlcollError, memory
from llcoll.pool import ALIGNMENT, Pool


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5000), st.integers(0, 99)), max_size=80))
def test_blocks_never_overlap(steps: list[tuple[bool, int, int]]) -> None:
    pool = Pool(16 * 1024)
    taken: list[tuple[int, int]] = []
    for takes, num_bytes, which in steps:
        if takes or not taken:
            free = pool.free_bytes
            try:
                block = pool.take(num_bytes)
            except LlcollError:
                assert num_bytes > ALIGNMENT or free < ALIGNMENT or num_bytes > free // 16
                continue
            offset, size = block
            assert offset % ALIGNMENT == 0 and num_bytes <= size < num_bytes + 2 * ALIGNMENT
            assert offset >= 0 and offset + size <= pool.num_bytes
            assert all(offset + size <= o or o + s <= offset for o, s in taken)
            assert pool.free_bytes == free - size
            taken.append(block)
        else:
            pool.give_back(*taken.pop(which % len(taken)))
    for block in taken:
        pool.give_back(*block)
    assert pool.take(pool.num_bytes) == (0, pool.num_bytes)  # all gaps are one again


def test_a_full_pool_says_so() -> None:
    pool = Pool(4096)
    first, _ = pool.take(1024), pool.take(2048)
    with pytest.raises(LlcollError, match="1025 bytes wanted, 1024 of 4096 free.*pool_bytes"):
        pool.take(1025)
    pool.give_back(*first)
    with pytest.raises(LlcollError, match="2048 of 4096 free, the largest gap has 1024"):
        pool.take(2048)
    with pytest.raises(LlcollError, match="0 of 0 free"):
        Pool(0).take(1)


def test_a_block_lives_as_long_as_its_object() -> None:
    buffer = memory._Buffer(torch.zeros(8192, dtype=torch.uint8), None, 4096)
    block = memory._Block(buffer, 1000)
    assert block.address == buffer.tensor.data_ptr() + 4096
    assert block.__cuda_array_interface__["shape"] == (1000,)
    assert buffer.pool.free_bytes == 4096 - 1024
    with pytest.raises(LlcollError, match="full"):
        memory._Block(buffer, 4096)
    gc.collect()
    assert buffer.pool.free_bytes == 4096 - 1024
    del block
    gc.collect()
    assert buffer.pool.free_bytes == 4096
