"""The GPU programs' reference in torch gives the bits of the numpy one."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import reference

_PATH = Path(__file__).parent / "gpu" / "torch_reference.py"


@pytest.mark.parametrize("world", [1, 2, 3, 8])
@pytest.mark.parametrize("name", list(reference.TYPES))
def test_same_bits(name: str, world: int) -> None:
    spec = importlib.util.spec_from_file_location("torch_reference", _PATH)
    assert spec and spec.loader
    on_torch = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(on_torch)
    kind = reference.TYPES[name].bits
    inputs = on_torch.make_inputs(name, world, 5000, world, "cpu")
    stacked = np.stack([on_torch.bits(x).numpy() for x in inputs]).view(kind)
    for op in reference.OPS:
        if (name, op) == ("bool", "avg"):
            continue
        got = on_torch.bits(on_torch.all_reduce(op, inputs)).numpy().view(kind)
        np.testing.assert_array_equal(got, reference.all_reduce(name, op, stacked), err_msg=op)
