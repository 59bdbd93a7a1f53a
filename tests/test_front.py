"""llcoll.all_reduce_ and all_reduce_out around the dispatcher: when, and when not. One rank."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import llcoll
from llcoll import _C, _ops

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.uint8,
    torch.int32,
    torch.int64,
    torch.bool,
]


@pytest.fixture(scope="module", autouse=True)
def one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    with llcoll.init(device="cpu"):
        yield
    dist.destroy_process_group()


def direct(x: Any, *, out: Any = None, group: Any = None, op: Any = "sum") -> bool:
    return _C.all_reduce(x, op, group, "auto", x if out is None else out)


def test_this_torch_has_what_it_takes() -> None:
    assert _ops.HAS_FRONT


@pytest.mark.parametrize("dtype", DTYPES)
def test_plain_tensors_go_directly(dtype: torch.dtype) -> None:
    x = torch.arange(12).to(dtype).reshape(3, 4)
    want = x.clone()
    assert direct(x) and torch.equal(x, want)
    out = torch.zeros_like(x)
    assert direct(x, out=out) and torch.equal(out, want)
    # A view inside its storage, a dimension of 1 with any stride, a leaf that wants a gradient.
    assert direct(x[1:]) and direct(x[:, None]) and direct(x[1, 1:])
    assert torch.equal(x, want)
    group = dist.group.WORLD.group_name
    assert direct(x, group=group) and direct(x, group="", op="max")


def test_other_tensors_do_not() -> None:
    x = torch.randn(4, 4)
    for other in (
        x.t(),
        x[:, 1:],
        torch.empty(0),
        x[0, :1].expand(3),
        torch.empty(3, device="meta"),
        torch.eye(3).to_sparse(),
        torch.zeros(3, dtype=torch.complex64),
        torch.zeros(3).to(torch.float8_e5m2),
        torch.nn.Parameter(x),
        [1.0],
        None,
    ):
        assert not direct(other)
    assert direct(x)
    for out in (
        torch.empty(16),
        torch.empty(4, 4, dtype=torch.float64),
        x.t(),
        torch.nn.Parameter(x),
    ):
        assert not direct(x, out=out)
    base = torch.zeros(20)
    assert not direct(base[:16], out=base[3:19])
    assert not direct(x, group="nowhere") and not direct(x, op="median") and not direct(x, op=3)
    with pytest.raises(TypeError):
        _C.all_reduce(x)  # type: ignore[call-arg]


def test_lazy_negation_is_seen() -> None:
    one = torch.tensor([1 + 2j]).conj().imag
    assert one.is_neg() and one.is_contiguous() and not direct(one)
    llcoll.all_reduce_(one)
    assert one.item() == -2


def test_copy_on_write_is_kept() -> None:
    x = torch.randn(64)
    want = x.clone()
    lazy = torch._lazy_clone(x)
    llcoll.all_reduce_(lazy)
    lazy.add_(1)
    assert torch.equal(x, want) and torch.equal(lazy, want + 1)


def test_modes_see_the_op() -> None:
    seen: list[str] = []

    class Dispatch(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    class Function(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    x = torch.ones(3)
    for mode in (Dispatch, Function):
        seen.clear()
        with mode():
            assert not direct(x)
            llcoll.all_reduce_(x)
        assert any("all_reduce_" in name for name in seen), (mode, seen)
    with torch.profiler.profile() as profile:
        assert not direct(x)
        llcoll.all_reduce_(x)
    assert any("llcoll::all_reduce_" in event.key for event in profile.key_averages())
    assert direct(x)


def test_transforms_and_tracers_see_the_op() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    went: list[bool] = []

    def note(t: torch.Tensor) -> torch.Tensor:
        went.append(direct(t))
        return t * 1

    torch.vmap(note)(torch.ones(3, 3))
    torch.func.functionalize(note)(torch.ones(3))
    torch.func.grad(lambda t: note(t).sum())(torch.ones(3))
    torch.jit.trace(note, torch.ones(3), check_trace=False)
    note(torch._to_functional_tensor(torch.ones(3)))
    assert went and not any(went)

    def f(t: torch.Tensor) -> torch.Tensor:
        y = t * 2
        llcoll.all_reduce_(y)
        return y

    graph = make_fx(f)(torch.ones(3))
    assert any("all_reduce_" in str(node.target) for node in graph.graph.nodes)


def test_compiled_front(monkeypatch: pytest.MonkeyPatch) -> None:
    def f(t: torch.Tensor) -> torch.Tensor:
        y = t * 2
        llcoll.all_reduce_(y, "max", None, "one_shot_flag")
        return llcoll.all_reduce_out(y, out=torch.empty_like(y)) + 1

    monkeypatch.setattr(llcoll, "_direct", None)  # tracing must never come to it
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 3.0))


def test_front_reports_errors_as_the_op_does() -> None:
    x = torch.ones(4)
    with pytest.raises(llcoll.LlcollError, match="^unknown reduce_op 'median'"):
        llcoll.all_reduce_(x, "median")
    with pytest.raises(llcoll.LlcollError, match="^no communicator for group 'nowhere'"):
        llcoll.all_reduce_(x, group="nowhere")
    with pytest.raises(llcoll.LlcollError, match="^out has shape"):
        llcoll.all_reduce_out(x, out=torch.empty(5))
