"""llcoll.compile: which all-reduces the pass replaces, the fused norm, compile caches."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import harness
import pytest
import torch
import torch.fx

import llcoll
from llcoll.compile import Pass, arguments_of, match_norm


@pytest.mark.timeout(600)
def test_two_ranks(tmp_path: Path) -> None:
    """Replaced, fused, and left alone; the cache keeps these apart, and comes back right."""
    ranks = harness.pool(2)

    def layer(fuse: bool, enable: bool) -> tuple[int, int, int]:
        arguments = (str(tmp_path), fuse, enable)
        both = ranks.results("jobs_compile", "compiled_layer", *arguments, timeout=280)
        assert both[0][:2] == both[1][:2]
        return both[0]

    assert layer(False, True)[:2] == (1, 0)
    assert layer(True, True)[:2] == (1, 1)
    assert layer(False, False)[:2] == (0, 0)  # not the graphs that hold llcoll's ops
    replaced, _, hits = layer(False, True)
    assert replaced == 0 and hits > 0  # out of the cache: no pass ran
    assert ranks.results("jobs_compile", "code_of_layer", str(tmp_path), timeout=280) == [True] * 2


@pytest.mark.timeout(600)
def test_dtensor_model(tmp_path: Path) -> None:
    assert harness.pool(2).results("jobs_compile", "dtensor_model", str(tmp_path), timeout=280) == [
        1,
        1,
    ]


def graph_of(build: Any) -> torch.fx.Graph:
    graph = torch.fx.Graph()
    graph.output(build(graph))
    return graph


def placeholder(graph: torch.fx.Graph, name: str, value: torch.Tensor) -> torch.fx.Node:
    node = graph.placeholder(name)
    node.meta["val"] = value
    return node


def reduce_and_wait(graph: torch.fx.Graph, value: torch.Tensor, op: str, group: str) -> Any:
    functional = torch.ops._c10d_functional
    x = placeholder(graph, "x", value)
    reduced = graph.call_function(functional.all_reduce.default, (x, op, group))
    waited = graph.call_function(functional.wait_tensor.default, (reduced,))
    reduced.meta["val"] = waited.meta["val"] = value
    return waited


@pytest.mark.parametrize(
    ("dtype", "op", "group", "numel", "replaced"),
    [
        (torch.float32, "sum", "served", 64, 1),
        (torch.bfloat16, "product", "served", 64, 1),
        (torch.float32, "sum", "elsewhere", 64, 0),
        (torch.float32, "band", "served", 64, 0),
        (torch.complex64, "sum", "served", 64, 0),
        (torch.float32, "sum", "served", 1 << 22, 0),
    ],
)
def test_what_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
    dtype: torch.dtype,
    op: str,
    group: str,
    numel: int,
    replaced: int,
) -> None:
    known = SimpleNamespace(closed=False)
    monkeypatch.setattr(
        llcoll.compile, "find_or_none", lambda name, kind: known if name == "served" else None
    )
    value = torch.empty(numel, dtype=dtype)
    graph = graph_of(lambda g: reduce_and_wait(g, value, op, group))
    run = Pass(None, False, 8 << 20)
    run(graph)
    targets = [node.target for node in graph.nodes if node.op == "call_function"]
    assert run.replaced == replaced
    assert (torch.ops.llcoll.all_reduce.default in targets) == bool(replaced)


def test_arguments_by_schema() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    op = torch.ops._c10d_functional.all_reduce.default
    by_name = graph.call_function(op, (x,), {"group_name": "g", "reduce_op": "max"})
    found = arguments_of(by_name)
    assert found["reduce_op"] == "max" and found["group_name"] == "g"


def test_norm_that_is_none() -> None:
    """A sum that something else reads too, or a mean over another dimension, is no match."""
    value = torch.empty(4, 8)

    def build(dims: list[int], weight_shape: int) -> torch.fx.Node:
        graph = torch.fx.Graph()
        aten = torch.ops.aten

        def call(op: Any, *args: Any) -> torch.fx.Node:
            node = graph.call_function(op, args)
            node.meta["val"] = value
            return node

        x, residual = placeholder(graph, "x", value), placeholder(graph, "residual", value)
        weight = placeholder(graph, "weight", torch.empty(weight_shape))
        reduced = call(torch.ops.llcoll.all_reduce.default, x, "sum", "")
        added = call(aten.add.Tensor, residual, reduced)
        squared = call(aten.pow.Tensor_Scalar, added, 2)
        mean = call(aten.mean.dim, squared, dims, True)
        root = call(aten.rsqrt.default, call(aten.add.Tensor, mean, 1e-5))
        graph.output(call(aten.mul.Tensor, weight, call(aten.mul.Tensor, added, root)))
        return reduced

    found = match_norm(build([-1], 8))
    assert found is not None and found[2] == 1e-5 and found[3] == 0.0
    assert match_norm(build([0], 8)) is None
    assert match_norm(build([-1], 1)) is None
    seen = build([-1], 8)
    seen.graph.call_function(torch.ops.aten.neg.default, (seen,))
    assert match_norm(seen) is None
