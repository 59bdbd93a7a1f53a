"""The vLLM plugin (entry point group vllm.general_plugins), on by LLCOLL_VLLM=1: docs/vllm.md.

vLLM calls register() in its engine and in every worker, before any process group exists, sometimes
more than once. It puts subclasses in the place of two of vLLM's classes, which vLLM looks up by
name when it makes the tensor-parallel group:

- CustomAllreduce (CUDA): small and middle messages of the TP group go through llcoll;
- CpuCommunicator: the TP group's all_reduce is torch.ops.llcoll.all_reduce_.

Where llcoll cannot serve, the stock class goes on as if llcoll were not there.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch

from . import communicator as communicators
from . import settings
from ._errors import LlcollError

CHECKED_VERSIONS = ("0.20.2", "0.25.1", "0.28.0", "0.33.0")
"""The releases whose classes were compared with what the subclasses need."""

DEFAULT_MAX_BYTES = 8 << 20  # vLLM's own limit for its custom all-reduce

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_DEVICES = "vllm.distributed.device_communicators"
_NEEDS = {
    "CustomAllreduce": ("should_custom_ar", "custom_all_reduce", "capture", "close"),
    "CpuCommunicator": ("all_reduce",),
}


def register() -> None:
    """The entry point. Never raises: what is wrong is one line of the log."""
    if os.environ.get("LLCOLL_VLLM") != "1":
        return
    from vllm.version import __version__ as version

    log = _logger()
    refusal = _version_problem(version)
    if refusal:
        log.warning("llcoll is not used: %s", refusal)
        return
    for module_name, class_name, make in (
        ("custom_all_reduce", "CustomAllreduce", make_custom_all_reduce),
        ("cpu_communicator", "CpuCommunicator", make_cpu_communicator),
    ):
        place = f"{_DEVICES}.{module_name}.{class_name}"
        try:
            module = import_module(f"{_DEVICES}.{module_name}")
            stock = getattr(module, class_name)
        except (ImportError, AttributeError) as error:
            log.warning("llcoll does not replace %s of vLLM %s: %s", place, version, error)
            continue
        if getattr(stock, "is_llcoll", False):
            continue  # called before in this process
        missing = [name for name in _NEEDS[class_name] if not hasattr(stock, name)]
        if missing:
            log.warning("llcoll does not replace %s of vLLM %s: no %s", place, version, missing)
            continue
        setattr(module, class_name, make(stock))
        log.info("llcoll replaces %s of vLLM %s", place, version)


def _logger() -> Any:
    from vllm.logger import init_logger

    return init_logger("vllm.llcoll")  # below "vllm", whose handlers its workers set up


def _version_problem(version: str) -> str | None:
    """Why this vLLM is not served; LLCOLL_VLLM_ANY_VERSION=1 tries it all the same."""
    if os.environ.get("LLCOLL_VLLM_ANY_VERSION") == "1":
        return None

    def minor(text: str) -> tuple[int, ...]:
        parts = text.split("+")[0].split(".")[:2]
        return tuple(int(part) if part.isdigit() else -1 for part in parts)

    if minor(CHECKED_VERSIONS[0]) <= minor(version) <= minor(CHECKED_VERSIONS[-1]):
        return None
    return (
        f"vLLM {version} was not checked (these were: {', '.join(CHECKED_VERSIONS)}); "
        "LLCOLL_VLLM_ANY_VERSION=1 tries it"
    )


def _is_tp(unique_name: str) -> bool:
    """The names are "tp:0", "dp:0"; vLLM's own test, "tp" in the name, takes others in too."""
    return unique_name.partition(":")[0] == "tp"


def _name_of_cpu_group(group: Any, module: str) -> str | None:
    """What the engine calls the coordinator that owns this process group."""
    parallel_state = import_module(module)
    for name, reference in parallel_state._groups.items():
        coordinator = reference()
        if coordinator is not None and getattr(coordinator, "cpu_group", None) is group:
            return name
    return None


def _policy() -> str:
    return "invariant" if os.environ.get("VLLM_BATCH_INVARIANT") == "1" else "fast"


@dataclass(frozen=True)
class Host:
    """The engine whose class is replaced: vLLM, or SGLang, whose classes came from it."""

    parallel_state: str  # the module that lists the groups
    max_bytes: str  # the variable that limits what llcoll serves
    logger: Callable[[], Any]
    policy: Callable[[], str]
    # Where llcoll refuses, the subclass becomes the stock class; else its maker looks further.
    becomes_stock: bool


VLLM = Host("vllm.distributed.parallel_state", "LLCOLL_VLLM_MAX_BYTES", _logger, _policy, True)


def make_custom_all_reduce(stock: Any, host: Host = VLLM) -> Any:
    """A subclass of the engine's CustomAllreduce, whatever its release's signatures."""

    class LlcollCustomAllreduce(stock):
        is_llcoll = True
        _llcoll: communicators.Communicator | None = None

        def __init__(self, group: Any, device: Any, *args: Any, **kwargs: Any) -> None:
            # What __del__ and other releases' callers read, whichever way this goes.
            self._IS_CAPTURING = False
            self._ptr = 0
            self.disabled = True
            reason = self._take_over(group, device)
            if reason is None:
                return
            if reason:
                host.logger().warning("llcoll does not serve the TP group: %s", reason)
            if host.becomes_stock:
                super().__init__(group, device, *args, **kwargs)

        def _take_over(self, group: Any, device: Any) -> str | None:
            """None if llcoll serves the group, else why not; empty where it is not ours to ask."""
            name = _name_of_cpu_group(group, host.parallel_state)
            if name is None or not _is_tp(name) or group.size() == 1:
                return ""
            device = torch.device("cuda", device) if isinstance(device, int) else device
            self.device = torch.device(device)
            try:
                self._limit = settings._size(
                    host.max_bytes, os.environ.get(host.max_bytes) or DEFAULT_MAX_BYTES
                )
                self._made = communicators.find_or_none(group, self.device.type) is None
                # It succeeds on every rank of the group or on none, so all take the same way.
                self._llcoll = communicators.init(
                    group, device=self.device.type, policy=host.policy()
                )
            except LlcollError as error:
                return str(error)
            self._serves: dict[tuple[int, torch.dtype], bool] = {}
            self.group = group
            self.rank = group.rank()
            self.world_size = group.size()
            self.max_size = self._limit
            self.fully_connected = True  # what llcoll needs is checked by its init
            self.disabled = False
            host.logger().info(
                "llcoll serves group %s up to %d bytes: %r", name, self._limit, self._llcoll
            )
            return None

        def _serves_message(self, x: torch.Tensor) -> bool:
            """Depends on size and type alone, so every rank of the group decides alike."""
            key = (x.numel(), x.dtype)
            known = self._serves.get(key)
            if known is None:
                known = (
                    x.dtype in _DTYPES
                    and 0 < x.numel() * x.element_size() <= self._limit
                    and self._algorithm(x) != "torch"  # beyond llcoll's range: vLLM's own path
                )
                self._serves[key] = known
            return known and x.device.type == self.device.type

        def _algorithm(self, x: torch.Tensor) -> str:
            assert self._llcoll is not None
            dtype = str(x.dtype).removeprefix("torch.")
            name = self._llcoll.group_name
            return self._llcoll._backend.resolve(name, x.numel(), dtype, "sum", "auto")

        def should_custom_ar(self, inp: torch.Tensor) -> bool:
            if self._llcoll is None:
                return super().should_custom_ar(inp)
            return not self.disabled and self._serves_message(inp)

        def custom_all_reduce(self, input: torch.Tensor) -> torch.Tensor | None:
            """Communicates in the warm-up before a capture too: nothing is only mimicked."""
            if self._llcoll is None:
                return super().custom_all_reduce(input)
            return self.all_reduce(input) if self.should_custom_ar(input) else None

        def all_reduce(
            self,
            inp: torch.Tensor,
            *,
            out: torch.Tensor | None = None,
            registered: bool = False,
            **kwargs: Any,
        ) -> torch.Tensor:
            if self._llcoll is None:
                return super().all_reduce(inp, out=out, registered=registered, **kwargs)
            name = self._llcoll.group_name
            if out is None:
                return torch.ops.llcoll.all_reduce.default(inp, "sum", name)
            torch.ops.llcoll.all_reduce_out.default(inp, "sum", name, out=out)
            return out

        def should_custom_all_gather(self, inp: torch.Tensor) -> bool:
            if self._llcoll is None:
                return super().should_custom_all_gather(inp)
            return inp.dim() > 0 and self.should_custom_ar(inp)

        def custom_all_gather(self, inp: torch.Tensor) -> torch.Tensor | None:
            """Along dimension 0; None sends vLLM its own way."""
            if self._llcoll is None:
                return super().custom_all_gather(inp)
            if not self.should_custom_all_gather(inp):
                return None
            return torch.ops.llcoll.all_gather.default(inp, self._llcoll.group_name)

        def should_custom_reduce_scatter(self, inp: torch.Tensor) -> bool:
            if self._llcoll is None:
                return super().should_custom_reduce_scatter(inp)
            whole = inp.dim() > 0 and inp.shape[0] % self.world_size == 0
            return whole and self.should_custom_ar(inp)

        def custom_reduce_scatter(self, inp: torch.Tensor) -> torch.Tensor | None:
            if self._llcoll is None:
                return super().custom_reduce_scatter(inp)
            if not self.should_custom_reduce_scatter(inp):
                return None
            return torch.ops.llcoll.reduce_scatter.default(inp, "sum", self._llcoll.group_name)

        def should_mnnvl_multimem_reduce_scatter(self, inp: torch.Tensor) -> bool:
            if self._llcoll is None:
                return super().should_mnnvl_multimem_reduce_scatter(inp)
            return False

        @contextmanager
        def capture(self) -> Iterator[None]:
            if self._llcoll is None:
                with super().capture():
                    yield
                return
            # Nothing to register: a captured call works on any pointer and counts on the device.
            self._IS_CAPTURING = True
            try:
                yield
            finally:
                self._IS_CAPTURING = False

        def register_graph_buffers(self) -> None:
            if self._llcoll is None:
                super().register_graph_buffers()

        def close(self) -> None:
            """vLLM only drops the object, so this is __del__'s."""
            if self._llcoll is None:
                super().close()
                return
            self.disabled = True
            if self._made:
                self._made = False
                self._llcoll.shutdown()

    LlcollCustomAllreduce.__qualname__ = LlcollCustomAllreduce.__name__
    return LlcollCustomAllreduce


def make_cpu_communicator(stock: Any) -> Any:
    """A subclass of vLLM's CpuCommunicator; groups other than TP keep the stock behaviour."""

    class LlcollCpuCommunicator(stock):
        is_llcoll = True
        _llcoll_name: str | None = None

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            if not _is_tp(self.unique_name) or self.world_size == 1:
                return
            try:
                made = communicators.init(self.cpu_group, device="cpu", policy=_policy())
            except LlcollError as error:
                _logger().warning("llcoll does not serve group %s: %s", self.unique_name, error)
                return
            self._llcoll_name = made.group_name
            _logger().info("llcoll serves group %s: %r", self.unique_name, made)

        def all_reduce(self, input_: torch.Tensor) -> torch.Tensor:
            # vLLM traces this: a registered op with constant arguments is all that it may meet, and
            # no branch on the size, which a compiled graph would keep from its first call.
            if self._llcoll_name is None:
                return super().all_reduce(input_)
            torch.ops.llcoll.all_reduce_.default(input_, "sum", self._llcoll_name)
            return input_

    LlcollCpuCommunicator.__qualname__ = LlcollCpuCommunicator.__name__
    return LlcollCpuCommunicator
