"""The Python front of one rank: set-up, its errors, plans, names. More ranks: test_failures_*."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import llcoll
from llcoll import settings


@pytest.fixture(autouse=True)
def one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    llcoll.shutdown(device="cpu")
    if dist.is_initialized():
        dist.destroy_process_group()


def init(**options: Any) -> llcoll.Communicator:
    return llcoll.init(device="cpu", **options)


def test_init_is_idempotent() -> None:
    first = init()
    assert init() is first and llcoll.init(dist.group.WORLD, device="cpu") is first
    assert not first.closed and (first.rank, first.world_size) == (0, 1)
    llcoll.shutdown()
    assert first.closed
    second = init()
    assert second is not first and not second.closed


def test_context_manager() -> None:
    with init() as communicator:
        assert torch.equal(llcoll.all_reduce(torch.ones(3)), torch.ones(3))
        communicator.barrier()
        communicator.check()
    assert communicator.closed
    with pytest.raises(llcoll.LlcollError, match="no communicator for group"):
        llcoll.all_reduce(torch.ones(3))
    with pytest.raises(ZeroDivisionError), init() as communicator:
        raise ZeroDivisionError
    assert communicator.closed


def test_shutdown_twice_and_without_init() -> None:
    llcoll.shutdown()
    init()
    llcoll.shutdown()
    llcoll.shutdown()
    llcoll.shutdown("no such group")


def test_destroyed_first() -> None:
    communicator = init()
    dist.destroy_process_group()
    assert torch.equal(llcoll.all_reduce(torch.ones(3)), torch.ones(3))
    with pytest.raises(llcoll.LlcollError, match="destroyed"):
        llcoll.plan(torch.ones(3))
    llcoll.shutdown()
    assert communicator.closed


def test_a_name_that_comes_back_gets_a_new_communicator() -> None:
    old = init()
    name = old.group_name
    dist.destroy_process_group()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    new = init()
    assert new is not old and old.closed and not new.closed
    if new.group_name == name:
        assert torch.equal(llcoll.all_reduce(torch.ones(3), group=name), torch.ones(3))


def test_groups_by_object_name_and_communicator() -> None:
    group = dist.new_group([0])
    x = torch.ones(3)
    with pytest.raises(llcoll.LlcollError, match="no communicator for group"):
        llcoll.all_reduce(x, group=group)
    # Set up before the default group is.
    with llcoll.init(group, device="cpu") as own:
        for form in (group, group.group_name, own):
            assert torch.equal(llcoll.all_reduce(x, group=form), x)
            llcoll.barrier(form)
            llcoll.check(form)
        with pytest.raises(llcoll.LlcollError, match="no communicator"):
            llcoll.all_reduce(x)
        with init():
            assert torch.equal(llcoll.all_reduce(x), x)


def test_init_needs_a_process_group() -> None:
    with pytest.raises(llcoll.LlcollError, match="this rank is not in it"):
        llcoll.init(dist.GroupMember.NON_GROUP_MEMBER, device="cpu")
    with pytest.raises(llcoll.LlcollError, match="no process group named 'nowhere'"):
        llcoll.init("nowhere", device="cpu")
    dist.destroy_process_group()
    with pytest.raises(llcoll.LlcollError, match="init_process_group first"):
        init()


@pytest.mark.parametrize(
    ("options", "environment", "part"),
    [
        ({"policy": "slow"}, {}, "policy is 'slow'"),
        ({"timeout": -1}, {}, "timeout is -1"),
        ({"timeout": float("nan")}, {}, "timeout is nan"),
        ({"timeout": "soon"}, {}, "timeout is 'soon'"),
        ({"scratch_bytes": 0}, {}, "scratch_bytes is 0"),
        ({}, {"LLCOLL_TIMEOUT": "soon"}, "LLCOLL_TIMEOUT is 'soon'"),
        ({}, {"LLCOLL_POLICY": "slow"}, "LLCOLL_POLICY is 'slow'"),
        ({}, {"LLCOLL_ALGORITHM": "three_shot"}, "LLCOLL_ALGORITHM is 'three_shot'"),
        ({}, {"LLCOLL_SCRATCH_BYTES": "lots"}, "LLCOLL_SCRATCH_BYTES is 'lots'"),
        ({}, {"LLCOLL_DEBUG": "yes"}, "LLCOLL_DEBUG is 'yes'"),
    ],
)
def test_refused_options(
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    environment: dict[str, str],
    part: str,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(llcoll.LlcollError, match=part):
        init(**options)
    for name in environment:
        monkeypatch.delenv(name)
    # A refusal leaves nothing behind.
    assert torch.equal(init() and llcoll.all_reduce(torch.ones(2)), torch.ones(2))


def test_a_device_type_that_nothing_serves() -> None:
    with pytest.raises(llcoll.LlcollError, match="no backend for device type 'xpu'"):
        llcoll.init(device="xpu")


def resolve(**given: Any) -> settings.Settings:
    asked: dict[str, Any] = {
        "timeout": None,
        "policy": "fast",
        "allow_low_precision": False,
        "scratch_bytes": None,
        "pool_bytes": None,
        "device": "cpu",
    }
    return settings.resolve(**{**asked, **given}, group_timeout=77.0)


def test_where_settings_come_from(monkeypatch: pytest.MonkeyPatch) -> None:
    default = resolve()
    assert (default.timeout, default.policy, default.scratch_bytes) == (77.0, "fast", 0)
    monkeypatch.setenv("LLCOLL_TIMEOUT", "0.5")
    monkeypatch.setenv("LLCOLL_SCRATCH_BYTES", "16M")
    monkeypatch.setenv("LLCOLL_ALGORITHM", "two_shot_ll")
    monkeypatch.setenv("LLCOLL_DEBUG", "1")
    set_by_environment = resolve()
    assert set_by_environment.timeout == 0.5 and set_by_environment.debug
    assert set_by_environment.scratch_bytes == 16 << 20
    assert set_by_environment.algorithm == "two_shot_ll"
    given = resolve(timeout=timedelta(seconds=3), scratch_bytes=4096)
    assert (given.timeout, given.scratch_bytes) == (3.0, 4096)
    assert resolve(timeout=0).timeout == 0
    assert (default.pool_bytes, resolve(device="cuda").pool_bytes) == (0, 64 << 20)
    monkeypatch.setenv("LLCOLL_POOL_BYTES", "1M")
    assert resolve(device="cuda").pool_bytes == 1 << 20
    assert resolve(device="cuda", pool_bytes=0).pool_bytes == 0
    assert resolve(device="cuda", pool_bytes=1000).pool_bytes == 1024
    with pytest.raises(llcoll.LlcollError, match="pool_bytes is -1"):
        resolve(pool_bytes=-1)
    monkeypatch.setenv("LLCOLL_POLICY", "invariant")
    assert resolve().policy == "invariant"
    monkeypatch.setenv("LLCOLL_POLICY", "fast")
    assert resolve(policy="invariant").policy == "invariant"
    torch.use_deterministic_algorithms(True)
    try:
        assert resolve().policy == "invariant"
    finally:
        torch.use_deterministic_algorithms(False)


def test_timeout_of_the_process_group() -> None:
    from llcoll.rendezvous import group_timeout

    group = dist.new_group([0], timeout=timedelta(seconds=7))
    assert group_timeout(group) == 7.0


def test_front_returns_and_raises() -> None:
    init()
    x = torch.randn(4)
    assert llcoll.all_reduce_(x, "max") is x
    out = torch.empty(4)
    assert llcoll.all_reduce_out(x, out=out) is out and torch.equal(out, x)
    for call in (llcoll.all_reduce, llcoll.all_reduce_):
        with pytest.raises(llcoll.LlcollError, match="^unknown algorithm 'no'") as raised:
            call(x, algorithm="no")
        assert isinstance(raised.value, RuntimeError) and raised.value.__cause__ is None
    with pytest.raises(llcoll.LlcollError, match="group is 7"):
        llcoll.all_reduce(x, group=7)
    with pytest.raises(llcoll.LlcollError, match="^out has device meta, input has cpu"):
        llcoll.all_reduce_out(x, out=torch.empty(4, device="meta"))


def test_abort(caplog: pytest.LogCaptureFixture) -> None:
    communicator = init()
    llcoll.abort(reason="a test wants it")
    assert "a test wants it" in caplog.text
    with pytest.raises(llcoll.CollectiveAborted, match="rank 0 ended the group's collectives"):
        llcoll.check()
    with pytest.raises(llcoll.CollectiveAborted, match="rank 0 ended the group's collectives"):
        llcoll.all_reduce(torch.ones(3))
    communicator.shutdown()
    assert torch.equal(init() and llcoll.all_reduce(torch.ones(2)), torch.ones(2))


def test_plan() -> None:
    init()
    x, out = torch.randn(4, 6), torch.empty(4, 6)
    plan = llcoll.plan(x, "max", out=out)
    assert plan.tensor is x and plan.out is out
    assert "24 x float32, reduce_op 'max'" in repr(plan)
    for call in (plan, plan.run):
        x.normal_()
        assert call() is None
        assert torch.equal(out, x)
    with pytest.raises(TypeError, match="takes no arguments"):
        plan(x)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        type(plan)()
    # Strided tensors, and ones that overlap.
    strided = llcoll.plan(x.t(), out=out.t())
    out.zero_()
    strided()
    assert torch.equal(out, x)
    base = torch.arange(20.0)
    want = base[:16].clone()
    llcoll.plan(base[:16], out=base[3:19])()
    assert torch.equal(base[3:19], want)
    in_place = llcoll.plan(x)
    assert in_place.out is x
    in_place()
    llcoll.plan(torch.empty(0))()


def test_plan_refuses() -> None:
    init()
    x = torch.ones(8)
    for arguments in ({"op": "median"}, {"algorithm": "no"}, {"out": torch.ones(7)}):
        with pytest.raises(llcoll.LlcollError, match="plan of group .* failed: rank 0: "):
            llcoll.plan(x, **arguments)  # type: ignore[arg-type]
    with pytest.raises(llcoll.LlcollError, match="no communicator for group"):
        llcoll.plan(x, group="elsewhere")


def test_plan_notices_other_storage() -> None:
    init()
    x, out = torch.ones(8), torch.zeros(8)
    in_place, plan = llcoll.plan(x), llcoll.plan(x, out=out)
    in_place()
    plan()
    out.resize_(4096)
    with pytest.raises(llcoll.LlcollError, match="other storage or another size"):
        plan()
    in_place()
    x.data = torch.ones(8)
    for gone in (in_place, plan):
        with pytest.raises(llcoll.LlcollError, match="other storage or another size"):
            gone()


def test_plan_after_shutdown() -> None:
    init()
    plan = llcoll.plan(torch.ones(8))
    llcoll.shutdown()
    with pytest.raises(llcoll.LlcollError, match="was shut down"):
        plan()
    init()
    with pytest.raises(llcoll.LlcollError, match="was shut down"):
        plan()


def test_calls_from_threads() -> None:
    """Each with a group of its own: the look-up of a name is per thread."""
    groups = [dist.new_group([0]) for _ in range(4)]
    failures: list[BaseException] = []

    def work(group: dist.ProcessGroup) -> None:
        try:
            x = torch.ones(5)
            for _ in range(2000):
                assert torch.equal(llcoll.all_reduce(x, group=group), x)
        except BaseException as error:
            failures.append(error)

    made = [llcoll.init(group, device="cpu") for group in groups]
    threads = [threading.Thread(target=work, args=(group,)) for group in groups]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for communicator in made:
        communicator.shutdown()
    assert not failures and not any(thread.is_alive() for thread in threads)


def test_include_path() -> None:
    folder = Path(llcoll.include_path())
    assert (folder / "llcoll" / "types.h").is_file()


def test_version_is_the_packages() -> None:
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    assert f'version = "{llcoll.__version__}"' in text


def test_empty() -> None:
    x = llcoll.empty(3, 4, dtype=torch.bfloat16)
    assert (x.shape, x.dtype, x.device.type) == ((3, 4), torch.bfloat16, "cpu")


@pytest.mark.parametrize("end", ["pass", "llcoll.shutdown()", "dist.destroy_process_group()"])
def test_the_interpreter_ends(end: str) -> None:
    script = (
        "import torch, torch.distributed as dist, llcoll\n"
        "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
        "llcoll.init(device='cpu'); plan = llcoll.plan(torch.ones(3)); plan()\n" + end
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=env, timeout=60, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
