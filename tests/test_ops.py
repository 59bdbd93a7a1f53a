"""The ops as torch sees them: schemas, fakes, gradients, compilation, memory. One rank."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch._inductor.config

import llcoll

ops = torch.ops.llcoll
OPTIONS = 'str reduce_op="sum", str group_name="", *, str algorithm="auto"'
HASH_OF_NO_NAME = 0xCBF29CE484222325 - (1 << 64)
NUMBERS = "int reduce_op, int algorithm, int group_hash"
SCHEMAS = {
    "all_reduce": f"(Tensor input, {OPTIONS}) -> Tensor",
    "all_reduce_": f"(Tensor(a!) input, {OPTIONS}) -> ()",
    "all_reduce_out": f"(Tensor input, {OPTIONS}, Tensor(a!) out) -> ()",
    "barrier": '(str group_name="") -> ()',
    "_all_reduce": f"(Tensor input, {NUMBERS}) -> Tensor",
    "_all_reduce_grad": f"(Tensor input, {NUMBERS}) -> Tensor",
    "_plan_create": "(Tensor input, Tensor out, str reduce_op, str group_name, str algorithm) "
    "-> int",
}


pytestmark = pytest.mark.usefixtures("one_rank")


@pytest.mark.parametrize("name", SCHEMAS)
def test_schema(name: str) -> None:
    # torch 2.11 only prints where a definition fails.
    schema = str(getattr(ops, name).default._schema)
    assert schema == f"llcoll::{name}{SCHEMAS[name]}"


def inputs() -> list[torch.Tensor]:
    base = torch.randn(6, 8)
    return [
        base,
        base.t(),
        base[::2, 1:7:3],
        base[1:, 3],
        torch.tensor(2.5),
        torch.empty(0, 3),
        base.to(torch.bfloat16),
        base.double(),
        (base * 10).int(),
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.randn(3).expand(4, 3),
    ]


@pytest.mark.parametrize("idx", range(len(inputs())))
def test_opcheck(idx: int) -> None:
    x = inputs()[idx]
    torch.library.opcheck(ops.all_reduce.default, (x,))
    torch.library.opcheck(ops.all_reduce.default, (x, "max"), {"algorithm": "one_shot_ll"})
    if x.dtype.is_floating_point:
        leaf = x.detach().clone().requires_grad_()
        torch.library.opcheck(ops.all_reduce.default, (leaf,))
        torch.library.opcheck(ops.all_reduce.default, (leaf, "avg"))
        numbers = (0, 0, HASH_OF_NO_NAME)
        torch.library.opcheck(ops._all_reduce_grad.default, (leaf, *numbers))
        torch.library.opcheck(ops._all_reduce.default, (x, *numbers))
    torch.library.opcheck(ops.all_reduce_out.default, (x,), {"out": torch.empty_like(x)})
    if 0 not in x.stride() or x.numel() == 0:
        torch.library.opcheck(ops.all_reduce_.default, (x,))


@pytest.mark.parametrize("idx", range(len(inputs())))
@pytest.mark.parametrize("op", ["sum", "avg", "min", "max", "prod"])
def test_one_rank_copies(idx: int, op: str) -> None:
    x = inputs()[idx]
    y = ops.all_reduce(x, op)
    assert torch.equal(x, y) and y.is_contiguous() and y.dtype == x.dtype
    assert x.numel() == 0 or y.data_ptr() != x.data_ptr(), "a functional result is fresh storage"
    out = torch.full(x.shape[::-1], 7).to(x.dtype).permute(tuple(reversed(range(x.dim()))))
    assert ops.all_reduce_out(x, op, out=out) is None
    assert torch.equal(out, x)
    if 0 not in x.stride():
        z = x.clone()
        assert ops.all_reduce_(z, op) is None
        assert torch.equal(z, x)


def test_fake_agrees_with_real() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    for x in inputs():
        with FakeTensorMode() as mode:
            fake = ops.all_reduce(mode.from_tensor(x))
        real = ops.all_reduce(x)
        assert (fake.shape, fake.stride(), fake.dtype) == (real.shape, real.stride(), real.dtype)
    meta = ops.all_reduce(torch.empty(3, 4, device="meta"))
    assert meta.device.type == "meta" and meta.shape == (3, 4)


def test_out_may_overlap_its_input() -> None:
    base = torch.arange(20.0)
    want = base[:16].clone()
    ops.all_reduce_out(base[:16], out=base[3:19])
    assert torch.equal(base[3:19], want)
    ops.all_reduce_out(base, out=base)
    square = torch.randn(4, 4)
    want = square.t().clone()
    ops.all_reduce_out(square.t(), out=square)
    assert torch.equal(square, want)


def test_copy_on_write_input_is_not_written() -> None:
    x = torch.randn(64)
    lazy = torch._lazy_clone(x)
    ops.all_reduce_(lazy, "sum")
    lazy.add_(1)
    assert torch.equal(lazy, x + 1)


@pytest.mark.parametrize("op", ["sum", "avg"])
def test_gradient(op: str) -> None:
    x = torch.randn(5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: ops.all_reduce(t, op), x)
    assert torch.autograd.gradgradcheck(lambda t: ops.all_reduce(t, op) ** 2, x)


def test_gradient_of_others_is_refused() -> None:
    x = torch.randn(5, requires_grad=True)
    for op in ("min", "max", "prod"):
        y = llcoll.all_reduce(x, op)
        with pytest.raises(llcoll.LlcollError, match=f"'{op}' has no gradient"):
            y.sum().backward()


def test_no_graph_without_need() -> None:
    x = torch.randn(5)
    assert not ops.all_reduce(x).requires_grad
    leaf = torch.randn(5, requires_grad=True)
    with torch.no_grad():
        assert not ops.all_reduce(leaf).requires_grad
    with torch.inference_mode():
        assert not ops.all_reduce(leaf).requires_grad
    assert ops.all_reduce(leaf).grad_fn is not None
    # In place is outside autograd, also through the temporary of a strided tensor.
    with torch.no_grad():
        wide = leaf.expand(1, 5).repeat(3, 1)
    strided = wide.t().requires_grad_()
    ops.all_reduce_(strided)
    assert strided.is_leaf


def test_errors_come_through_the_autograd_kernel() -> None:
    """The path through torch's C dispatcher call would lose the text."""
    for x in (torch.randn(4), torch.randn(4, requires_grad=True)):
        with pytest.raises(RuntimeError, match="^LlcollError: unknown reduce_op 'median'; choose"):
            ops.all_reduce(x, "median")
        with pytest.raises(RuntimeError, match="^LlcollError: no communicator for group 'nowhere'"):
            ops.all_reduce(x, "sum", "nowhere")
    assert torch.equal(ops.all_reduce(torch.ones(3)), torch.ones(3))


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    """A graph that an earlier build left in the cache may call ops by schemas that are gone."""
    torch._dynamo.reset()
    with torch._inductor.config.patch(force_disable_caches=True):
        yield


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_compile(backend: str, fresh_compiler: None) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = llcoll.all_reduce(x * 2) + 1
        llcoll.all_reduce_(z, "max")
        out = torch.empty_like(z)
        ops.all_reduce_out(z, out=out)
        llcoll.barrier()
        return out * y

    compiled = torch.compile(f, fullgraph=True, backend=backend)
    for shape in ((4, 5), (7, 5)):
        x, y = torch.randn(shape), torch.randn(shape)
        torch.testing.assert_close(compiled(x, y), f(x, y))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("op", ["sum", "avg"])
def test_compile_with_gradient(backend: str, op: str, fresh_compiler: None) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (llcoll.all_reduce(x.sin(), op) * x).sum()

    x = torch.randn(4, 5, requires_grad=True)
    (want,) = torch.autograd.grad(f(x), x)
    (got,) = torch.autograd.grad(torch.compile(f, fullgraph=True, backend=backend)(x), x)
    torch.testing.assert_close(got, want)


def test_make_fx_traces_it() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    graph = make_fx(lambda x: ops.all_reduce(x) + 1)(torch.randn(3))
    targets = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
    assert any("llcoll" in target for target in targets), targets


GROWTH = r"""
import os, sys, torch, torch.distributed as dist, llcoll
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
llcoll.init(device="cpu")
ops = torch.ops.llcoll
x, name = torch.ones(8), dist.group.WORLD.group_name
leaf = torch.ones(8, requires_grad=True)

def resident():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

def refuse():
    try:
        ops.all_reduce_(x, "a_reduce_op_too_long_for_a_small_string")
    except RuntimeError:
        pass

out, flag = torch.empty(8), "one_shot_flag"
plan = llcoll.plan(x)
calls = {
    "in place": (1_000_000, lambda: ops.all_reduce_.default(x)),
    "front": (1_000_000, lambda: llcoll.all_reduce_(x)),
    "front, names": (200_000, lambda: llcoll.all_reduce_(x, "max", name, flag)),
    "front, out": (200_000, lambda: llcoll.all_reduce_out(x, out=out)),
    "strings": (200_000, lambda: ops.all_reduce_.default(x, "sum", name, algorithm=flag)),
    "functional": (200_000, lambda: ops.all_reduce.default(x, "sum", name)),
    "gradient": (30_000, lambda: ops.all_reduce.default(leaf, "sum", name)),
    "out": (200_000, lambda: ops.all_reduce_out.default(x, "max", name, out=out)),
    "strided": (50_000, lambda: ops.all_reduce_.default(x[::2])),
    "error": (30_000, refuse),
    "plan": (1_000_000, plan),
    "plans": (3_000, lambda: llcoll.plan(x)),
}
for what, (count, call) in calls.items():
    for _ in range(count // 10):
        call()
    before = resident()
    for _ in range(count):
        call()
    grown = resident() - before
    # The string leak of torch's own conversion would be 48 B a call.
    limit = 3 << 20
    print(f"{what}: {grown} bytes in {count} calls", file=sys.stderr)
    if grown > limit:
        sys.exit(f"{what}: {grown} bytes more after {count} calls")
"""


def test_calls_grow_nothing() -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [sys.executable, "-c", GROWTH], env=env, timeout=280, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_tensors_are_let_go() -> None:
    import weakref

    def references(make: Any) -> bool:
        x = torch.ones(1000)
        seen = weakref.ref(x)
        make(x)
        del x
        gc.collect()
        return seen() is None

    assert references(lambda x: ops.all_reduce(x))
    assert references(lambda x: ops.all_reduce_(x))
    assert references(lambda x: llcoll.plan(x)())
    kept = []
    assert not references(lambda x: kept.append(llcoll.plan(x)))
    kept[0]()
