"""What ranks run for the fused ops: results against the separate ops and the numpy reference."""

from __future__ import annotations

from typing import Any

import norm_reference
import torch
import torch.distributed as dist

import llcoll

State = dict[str, Any]
EPS = 1e-5


def data(
    rank: int, rows: int, columns: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """input of this rank; residual and weight, the same everywhere."""
    own = torch.Generator().manual_seed(1000 * rank + rows + columns)
    shared = torch.Generator().manual_seed(rows + columns)
    x = torch.randn(rows, columns, generator=own).to(dtype)
    residual = (4 * torch.randn(rows, columns, generator=shared)).to(dtype)
    return x, residual, torch.randn(columns, generator=shared).to(dtype)


def total(rank: int, world: int, rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    """The sum in rank order, in float32, rounded once."""
    sum_ = data(0, rows, columns, dtype)[0].float()
    for other in range(1, world):
        sum_ = sum_ + data(other, rows, columns, dtype)[0].float()
    return sum_.to(dtype)


def equal(got: torch.Tensor, want: torch.Tensor) -> bool:
    width = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[got.element_size()]
    return got.dtype == want.dtype and torch.equal(got.view(width), want.view(width))


def compare(state: State, rows: int, columns: int, dtype: torch.dtype, algorithm: str) -> None:
    rank, world = state["rank"], state["world_size"]
    x, residual, weight = data(rank, rows, columns, dtype)
    sum_ = total(rank, world, rows, columns, dtype)
    label = (rows, columns, dtype, algorithm)
    for bias in (0.0, 1.0):
        y, want_residual = norm_reference.exact_norm(sum_, weight, EPS, bias, residual)
        options = {"weight_bias": bias, "algorithm": algorithm}
        norm, out = llcoll.all_reduce_rms_norm(x, residual, weight, EPS, **options)
        assert equal(out, want_residual), label
        assert equal(norm, y.to(dtype)), label
        reduced = llcoll.all_reduce(x, algorithm=algorithm)
        apart, apart_out = llcoll.add_rms_norm(reduced, residual, weight, EPS, weight_bias=bias)
        assert equal(norm, apart) and equal(out, apart_out), label
        if columns > 1:
            # torch's order differs; so does the last bit, not more.
            theirs = torch.nn.functional.rms_norm(
                want_residual.float(), (columns,), weight.float() + bias, EPS
            )
            tolerance = {torch.float32: 3e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}[dtype]
            torch.testing.assert_close(norm.float(), theirs, rtol=tolerance, atol=tolerance)

        scale = torch.tensor([0.037])
        quantised, out = llcoll.all_reduce_rms_norm_fp8(x, residual, weight, scale, EPS, **options)
        assert equal(out, want_residual), label
        assert equal(quantised, norm_reference.fp8(y, scale.numpy())), label
        quantised, out, scales = llcoll.all_reduce_rms_norm_dynamic_fp8(
            x, residual, weight, EPS, **options
        )
        want_scales = norm_reference.row_scales(y)
        assert equal(out, want_residual) and scales.shape == (rows, 1), label
        assert equal(scales, torch.from_numpy(want_scales)), label
        assert equal(quantised, norm_reference.fp8(y, want_scales)), label


def batches(state: State, columns: int, dtype: torch.dtype) -> None:
    """A row's result does not depend on the rows beside it."""
    x, residual, weight = data(state["rank"], 33, columns, dtype)
    whole = llcoll.all_reduce_rms_norm(x, residual, weight, EPS)
    for first, last in ((0, 1), (4, 9), (0, 32), (32, 33)):
        part = llcoll.all_reduce_rms_norm(x[first:last], residual[first:last], weight, EPS)
        for got, want in zip(part, whole, strict=True):
            assert equal(got, want[first:last].contiguous()), (first, last)


def odd_layouts(state: State) -> None:
    """Strided, unaligned and 3-dimensional tensors; an infinite, a NaN and a zero row; no rows."""
    rank, world = state["rank"], state["world_size"]
    x, residual, weight = data(rank, 6, 96, torch.bfloat16)
    want = llcoll.all_reduce_rms_norm(x, residual, weight, EPS)

    def spread(t: torch.Tensor) -> torch.Tensor:
        wide = torch.zeros(*t.shape[:-1], 2 * t.shape[-1] + 1, dtype=t.dtype)
        view = wide[..., 1::2]
        view.copy_(t)
        return view

    got = llcoll.all_reduce_rms_norm(spread(x), spread(residual), spread(weight), EPS)
    assert all(equal(a, b) and a.is_contiguous() for a, b in zip(got, want, strict=True))
    cube = llcoll.all_reduce_rms_norm(x.view(2, 3, 96), residual.view(2, 3, 96), weight, EPS)
    assert all(equal(a.view(6, 96), b) for a, b in zip(cube, want, strict=True))
    scales = llcoll.all_reduce_rms_norm_dynamic_fp8(
        x.view(2, 3, 96), residual.view(2, 3, 96), weight, EPS
    )[2]
    assert scales.shape == (2, 3, 1)

    special = torch.zeros(3, 64)
    special[0, 3] = float("inf")
    special[1, 5] = float("nan")
    ones = torch.ones(64)
    norm, out = llcoll.all_reduce_rms_norm(special, torch.zeros(3, 64), ones, EPS)
    assert torch.isnan(norm[0, 3]) and (norm[0, :3] == 0).all() and torch.isinf(out[0, 3])
    assert torch.isnan(norm[1]).all() and (norm[2] == 0).all()
    nothing = llcoll.all_reduce_rms_norm(torch.empty(0, 64), torch.empty(0, 64), ones, EPS)
    assert nothing[0].shape == (0, 64)
    assert world == dist.get_world_size()


def errors(state: State) -> list[str]:
    """Bad arguments on every rank: the text of each; the communicator works on."""
    good = torch.ones(2, 8)
    weight = torch.ones(8)
    cases: list[tuple[Any, ...]] = [
        (good.double(), good.double(), weight.double(), EPS),
        (good, torch.ones(2, 7), weight, EPS),
        (good, good.half(), weight, EPS),
        (good, good, torch.ones(7), EPS),
        (good, good, weight.half(), EPS),
        (good, good, weight, -1.0),
        (torch.tensor(1.0), torch.tensor(1.0), weight, EPS),
        (torch.ones(2, 0), torch.ones(2, 0), torch.ones(0), EPS),
    ]
    texts = []
    for case in cases:
        try:
            llcoll.all_reduce_rms_norm(*case)
            texts.append("no error")
        except llcoll.LlcollError as error:
            texts.append(str(error))
    try:
        llcoll.all_reduce_rms_norm_fp8(good, good, weight, torch.ones(2), EPS)
        texts.append("no error")
    except llcoll.LlcollError as error:
        texts.append(str(error))
    compare(state, 2, 64, torch.float32, "auto")
    return texts
