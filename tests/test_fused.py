"""all_reduce_rms_norm and its kin, on the CPU: bits, batches, fp8, errors, compilation."""

from __future__ import annotations

import os

import harness
import pytest
import torch

import llcoll

ops = torch.ops.llcoll
TAIL = 'str group_name="", *, float weight_bias=0., str algorithm="auto"'
SCHEMAS = {
    "rms_norm": "(Tensor input, Tensor weight, float eps, *, float weight_bias=0.) -> Tensor",
    "add_rms_norm": "(Tensor input, Tensor residual, Tensor weight, float eps, *, "
    "float weight_bias=0.) -> (Tensor, Tensor)",
    "all_reduce_rms_norm": "(Tensor input, Tensor residual, Tensor weight, float eps, "
    f"{TAIL}) -> (Tensor, Tensor)",
    "all_reduce_rms_norm_fp8": "(Tensor input, Tensor residual, Tensor weight, Tensor scale, "
    f"float eps, {TAIL}) -> (Tensor, Tensor)",
    "all_reduce_rms_norm_dynamic_fp8": "(Tensor input, Tensor residual, Tensor weight, float eps, "
    f"{TAIL}) -> (Tensor, Tensor, Tensor)",
}
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("name", SCHEMAS)
def test_schema(name: str) -> None:
    schema = str(getattr(ops, name).default._schema)
    assert schema == f"llcoll::{name}{SCHEMAS[name]}"


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("dtype", DTYPES)
def test_bits(world: int, dtype: torch.dtype) -> None:
    ranks = harness.pool(world)
    for algorithm in ("auto", "one_shot_flag", "two_shot_flag", "one_shot_sentinel", "two_shot_ll"):
        for rows, columns in ((1, 1), (3, 7), (5, 64), (2, 513), (7, 96)):
            ranks.results("jobs_fused", "compare", rows, columns, dtype, algorithm)
    ranks.results("jobs_fused", "compare", 2, 4096, dtype, "auto")
    ranks.results("jobs_fused", "compare", 40, 1030, dtype, "auto")


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("dtype", DTYPES)
def test_batch_invariance(world: int, dtype: torch.dtype) -> None:
    harness.pool(world).results("jobs_fused", "batches", 1000, dtype)


def test_layouts_and_special_values() -> None:
    harness.pool(2).results("jobs_fused", "odd_layouts")


def test_errors() -> None:
    for texts in harness.pool(2).results("jobs_fused", "errors"):
        for text, part in zip(
            texts,
            (
                "takes float32, float16 or bfloat16, not float64",
                "residual has shape [2, 7], input has [2, 8]",
                "residual has dtype float16, input has float32",
                "weight has shape [7]",
                "weight has dtype float16",
                "eps is -1",
                "input has shape []",
                "input has shape [2, 0]",
                "scale must be one float32, has 2 elements",
            ),
            strict=True,
        ):
            assert part in text


@pytest.mark.parametrize("dtype", DTYPES)
def test_opcheck(one_rank: None, dtype: torch.dtype) -> None:
    x, residual = torch.randn(4, 24).to(dtype), torch.randn(4, 24).to(dtype)
    weight, scale = torch.randn(24).to(dtype), torch.ones(1)
    for layout in (x, x.t().contiguous().t()):
        torch.library.opcheck(ops.rms_norm.default, (layout, weight, 1e-5))
        torch.library.opcheck(ops.add_rms_norm.default, (layout, residual, weight, 1e-5))
        torch.library.opcheck(ops.all_reduce_rms_norm.default, (layout, residual, weight, 1e-5))
        arguments = (layout, residual, weight, scale, 1e-5)
        torch.library.opcheck(ops.all_reduce_rms_norm_fp8.default, arguments)
        arguments = (layout, residual, weight, 1e-5)
        options = {"weight_bias": 1.0, "algorithm": "one_shot_ll"}
        torch.library.opcheck(ops.all_reduce_rms_norm_dynamic_fp8.default, arguments, options)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile(one_rank: None, backend: str, tmp_path: object) -> None:
    """fullgraph, dynamic shapes, no second graph for another batch."""
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    weight = torch.randn(32)

    def layer(x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        norm, residual = llcoll.all_reduce_rms_norm(x * 2, residual, weight, 1e-6)
        return norm + 1, residual

    compiled = torch.compile(layer, fullgraph=True, backend=backend, dynamic=True)
    for rows in (3, 8, 5):
        x, residual = torch.randn(rows, 32), torch.randn(rows, 32)
        for got, want in zip(compiled(x, residual), layer(x, residual), strict=True):
            assert torch.equal(got, want)
    torch._dynamo.reset()


def test_world_of_one(one_rank: None) -> None:
    x, residual, weight = torch.randn(4, 80), torch.randn(4, 80), torch.randn(80)
    both = llcoll.all_reduce_rms_norm(x, residual, weight, 1e-5)
    for got, want in zip(both, llcoll.add_rms_norm(x, residual, weight, 1e-5), strict=True):
        assert torch.equal(got, want)
    assert torch.equal(llcoll.rms_norm(x + residual, weight, 1e-5), both[0])
