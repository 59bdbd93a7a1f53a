"""The ops of one exchange as torch sees them: schemas, fakes, gradients, compilation, memory.

One rank: here every one of them is a copy.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._inductor.config

import llcoll

ops = torch.ops.llcoll
TAIL = 'str algorithm="auto"'
REDUCE = 'str reduce_op="sum"'
GROUP = 'str group_name=""'
SPLITS = "SymInt[] splits=[]"
BOTH = "SymInt[] input_splits=[], SymInt[] output_splits=[]"
OUT = "Tensor(a!) out) -> ()"
NUMBERS = (
    "Tensor input, int kind, int reduce_op, int root, SymInt[] input_splits, "
    "SymInt[] output_splits, int algorithm, int group_hash"
)
SCHEMAS = {
    "all_gather": f"(Tensor input, {GROUP}, *, {SPLITS}, {TAIL}) -> Tensor",
    "all_gather_out": f"(Tensor input, {GROUP}, *, {SPLITS}, {TAIL}, {OUT}",
    "reduce_scatter": f"(Tensor input, {REDUCE}, {GROUP}, *, {SPLITS}, {TAIL}) -> Tensor",
    "reduce_scatter_out": f"(Tensor input, {REDUCE}, {GROUP}, *, {SPLITS}, {TAIL}, {OUT}",
    "all_to_all": f"(Tensor input, {GROUP}, *, {BOTH}, {TAIL}) -> Tensor",
    "all_to_all_out": f"(Tensor input, {GROUP}, *, {BOTH}, {TAIL}, {OUT}",
    "broadcast": f"(Tensor input, int root=0, {GROUP}, *, {TAIL}) -> Tensor",
    "broadcast_": f"(Tensor(a!) input, int root=0, {GROUP}, *, {TAIL}) -> ()",
    "reduce": f"(Tensor input, int root=0, {REDUCE}, {GROUP}, *, {TAIL}) -> Tensor",
    "reduce_": f"(Tensor(a!) input, int root=0, {REDUCE}, {GROUP}, *, {TAIL}) -> ()",
    "_exchange_plan_create": "(Tensor input, Tensor out, int kind, str reduce_op, int root, "
    "str group_name, SymInt[] input_splits, SymInt[] output_splits, str algorithm) -> int",
    "_exchange": f"({NUMBERS}) -> Tensor",
    "_exchange_grad": f"({NUMBERS}) -> Tensor",
}
FUNCTIONAL: tuple[str, ...] = ("all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce")


pytestmark = pytest.mark.usefixtures("one_rank")


@pytest.mark.parametrize("name", SCHEMAS)
def test_schema(name: str) -> None:
    # torch 2.11 only prints where a definition fails.
    schema = str(getattr(ops, name).default._schema)
    assert schema == f"llcoll::{name}{SCHEMAS[name]}"


def inputs() -> list[torch.Tensor]:
    base = torch.randn(6, 8)
    return [base, base.t(), base[::2, 1:7:3], torch.empty(0, 3), base[1:, 3], (base * 10).int()]


@pytest.mark.parametrize("name", FUNCTIONAL)
def test_opcheck(name: str) -> None:
    op = getattr(ops, name).default
    for x in inputs():
        torch.library.opcheck(op, (x,))
        if name in ("broadcast", "reduce"):
            torch.library.opcheck(getattr(ops, name + "_").default, (x.clone(),))
        else:
            out = torch.empty_like(x)
            torch.library.opcheck(getattr(ops, name + "_out").default, (x,), {"out": out})
    leaf = torch.randn(4, 3, requires_grad=True)
    torch.library.opcheck(op, (leaf,))
    named: dict[str, Any] = {"algorithm": "one_shot_ll"}
    if name in ("all_gather", "reduce_scatter"):
        named["splits"] = [4]
    if name == "all_to_all":
        named.update(input_splits=[4], output_splits=[4])
    torch.library.opcheck(op, (leaf,), named)


@pytest.mark.parametrize("name", FUNCTIONAL)
def test_one_rank_copies(name: str) -> None:
    for x in inputs():
        y = getattr(ops, name)(x)
        assert torch.equal(x, y) and y.is_contiguous() and y.dtype == x.dtype
        assert x.numel() == 0 or y.data_ptr() != x.data_ptr(), "a result is fresh storage"


def test_fake_agrees_with_real() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    for name in FUNCTIONAL:
        for x in inputs():
            with FakeTensorMode() as mode:
                fake = getattr(ops, name)(mode.from_tensor(x))
            real = getattr(ops, name)(x)
            assert (fake.shape, fake.stride(), fake.dtype) == (
                real.shape,
                real.stride(),
                real.dtype,
            )


def test_out_may_overlap_its_input() -> None:
    for name in ("all_gather_out", "reduce_scatter_out", "all_to_all_out"):
        base = torch.arange(20.0)
        want = base[:16].clone()
        getattr(ops, name)(base[:16], out=base[3:19])
        assert torch.equal(base[3:19], want), name


@pytest.mark.parametrize("name", FUNCTIONAL)
def test_gradient(name: str) -> None:
    x = torch.randn(5, dtype=torch.float64, requires_grad=True)
    op = getattr(ops, name)
    assert torch.autograd.gradcheck(op, x)
    assert torch.autograd.gradgradcheck(lambda t: op(t) ** 2, x)
    with torch.no_grad():
        assert not op(x).requires_grad
    assert not op(x.detach()).requires_grad


def test_errors_come_through_the_autograd_kernel() -> None:
    for x in (torch.randn(4), torch.randn(4, requires_grad=True)):
        with pytest.raises(RuntimeError, match="^LlcollError: root is 3; the group has ranks 0 to"):
            ops.broadcast(x, 3)
        with pytest.raises(RuntimeError, match="^LlcollError: no communicator for group 'nowhere'"):
            ops.all_gather(x, "nowhere")
        with pytest.raises(RuntimeError, match=r"^LlcollError: splits \[3\] add up to 3"):
            ops.reduce_scatter(x, splits=[3])
    with pytest.raises(llcoll.LlcollError, match="unknown reduce_op 'median'"):
        llcoll.reduce(torch.ones(3), reduce_op="median")


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    with torch._inductor.config.patch(force_disable_caches=True):
        yield


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile(backend: str, fresh_compiler: None) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = llcoll.all_gather(x * 2) + 1
        y = llcoll.reduce_scatter(y, "max", splits=[y.shape[0]])
        n = y.shape[0]
        y = llcoll.all_to_all(y.sin(), input_splits=[n], output_splits=[n])
        y = llcoll.broadcast(y) + llcoll.reduce(y * x)
        out = torch.empty_like(y)
        ops.all_gather_out(y, out=out)
        llcoll.broadcast_(out)
        llcoll.reduce_(out)
        return out * x

    compiled = torch.compile(f, fullgraph=True, backend=backend)
    for shape in ((4, 5), (7, 5)):
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), f(x))


def test_compile_with_gradient(fresh_compiler: None) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = llcoll.all_gather(x.sin())
        return (llcoll.reduce_scatter(y * x, "avg") * llcoll.all_to_all(x)).sum()

    x = torch.randn(4, 5, requires_grad=True)
    (want,) = torch.autograd.grad(f(x), x)
    (got,) = torch.autograd.grad(torch.compile(f, fullgraph=True, backend="aot_eager")(x), x)
    torch.testing.assert_close(got, want)


GROWTH = r"""
import os, sys, torch, torch.distributed as dist, llcoll
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
llcoll.init(device="cpu")
ops = torch.ops.llcoll
x, name = torch.ones(8), dist.group.WORLD.group_name
leaf = torch.ones(8, requires_grad=True)
out = torch.empty(8)

def resident():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

def refuse():
    try:
        ops.all_gather(x, splits=[3])
    except RuntimeError:
        pass

calls = {
    "all_gather": (100_000, lambda: ops.all_gather.default(x, name)),
    "splits": (100_000, lambda: ops.all_gather.default(x, splits=[8])),
    "out": (100_000, lambda: ops.reduce_scatter_out.default(x, "max", name, splits=[8], out=out)),
    "both": (100_000, lambda: ops.all_to_all.default(x, input_splits=[8], output_splits=[8])),
    "in place": (100_000, lambda: ops.broadcast_.default(x, 0, name)),
    "gradient": (30_000, lambda: ops.all_gather.default(leaf, splits=[8])),
    "error": (20_000, refuse),
}
for what, (count, call) in calls.items():
    for _ in range(count // 10):
        call()
    before = resident()
    for _ in range(count):
        call()
    grown = resident() - before
    print(f"{what}: {grown} bytes in {count} calls", file=sys.stderr)
    # A list that nobody frees would be 40 B a call and more.
    if grown > (2 << 20):
        sys.exit(f"{what}: {grown} bytes more after {count} calls")
"""


def test_calls_grow_nothing() -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [sys.executable, "-c", GROWTH], env=env, timeout=280, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_copy_on_write_input_is_not_written() -> None:
    for call in (llcoll.broadcast_, llcoll.reduce_):
        run: Callable[..., Any] = call
        x = torch.randn(64)
        lazy = torch._lazy_clone(x)
        run(lazy)
        lazy.add_(1)
        assert torch.equal(lazy, x + 1)
