"""Communicators: one per process group and device type."""

import atexit
import json
import os
import re
import weakref
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist

from . import _ops, _ops_collectives, memory, settings, spanning, tables, topology
from ._errors import LlcollError, converted
from .rendezvous import Exchange, check_same, group_timeout

log = settings.set_up_logging()

_communicators: dict[tuple[str, str], "Communicator"] = {}


def _key_of(group: Any) -> str | None:
    """The group's name; None for the default group, whatever its name is."""
    if group is None or group == "":
        return None
    if isinstance(group, str):
        return group
    if isinstance(group, Communicator):
        return group.group_name
    if not isinstance(group, dist.ProcessGroup):
        raise LlcollError(
            f"group is {group!r}; it must be a process group that this rank is in, or a name"
        )
    return group.group_name


def group_name_of(group: Any) -> str:
    """What the ops take as `group_name`; empty for the default group."""
    return "" if group is None else _key_of(group) or ""


def _find_process_group(group: Any) -> dist.ProcessGroup:
    if not dist.is_available() or not dist.is_initialized():
        raise LlcollError(
            "llcoll.init needs torch.distributed: call torch.distributed.init_process_group first"
        )
    if isinstance(group, Communicator):
        group = group.group_name
    if group is None or group == "":
        group = dist.group.WORLD
    elif isinstance(group, str):
        try:
            group = dist.distributed_c10d._resolve_process_group(group)  # type: ignore[arg-type]
        except (RuntimeError, KeyError) as error:
            raise LlcollError(f"there is no process group named {group!r}: {error}") from None
    if not isinstance(group, dist.ProcessGroup):
        raise LlcollError(f"group is {group!r}: this rank is not in it")
    return group


def _default_device(group: dist.ProcessGroup) -> str:
    """CUDA where there is a GPU, llcoll has its backend, and the group is not for the CPU alone."""
    if _ops.CUDA_PROBLEM is None and torch.cuda.is_available():
        try:
            group._get_backend(torch.device("cuda"))
        except RuntimeError:
            return "cpu"
        return "cuda"
    return "cpu"


class Communicator:
    """Made by llcoll.init, ended by shutdown() or the end of its `with` block."""

    def __init__(self, group: dist.ProcessGroup, chosen: settings.Settings) -> None:
        self.group_name = group.group_name
        self.rank = group.rank()
        self.world_size = group.size()
        self.device_type = chosen.device
        self.settings = chosen
        self.table = tables.Chosen("", "built in", "")  # init() chooses
        self.is_default = group is dist.group.WORLD
        # Weak: destroy_process_group must free what it owns, whether or not shutdown came first.
        self._group = weakref.ref(group)
        self._backend = _ops.backend(chosen.device)
        self._open = True
        # Where the group spans nodes: what is below, and where each rank is.
        self._spanning: spanning.Spanning | None = None

    @property
    def nodes(self) -> topology.Nodes:
        """The group's ranks, node by node."""
        spans = self._spanning
        return [list(range(self.world_size))] if spans is None else spans.nodes

    @property
    def closed(self) -> bool:
        return not self._open

    def belongs_to(self, group: dist.ProcessGroup) -> bool:
        """False if the name has come back for another group, after destroy_process_group."""
        return self._group() is group

    def exchange(self, purpose: str) -> Exchange:
        group = self._group()
        if group is None or group not in dist.distributed_c10d._world.pg_map:
            raise LlcollError(f"process group {self.group_name!r} was destroyed: no {purpose} here")
        return Exchange(group, purpose)

    def check(self) -> None:
        """Raises what is pending: CollectiveTimeout, CollectiveAborted."""
        self._backend.check(self.group_name)

    def abort(self, reason: str = "llcoll.abort was called") -> None:
        """Ends all waits on every rank; later calls raise CollectiveAborted."""
        log.warning("%r is aborted: %s", self, reason)
        self._backend.abort(self.group_name, reason)

    def dump(self, path: str | os.PathLike[str] | None = None) -> dict[str, Any]:
        """llcoll.dump of this communicator."""
        text = self._backend.flight_record(self.group_name, "llcoll.dump was called")
        record: dict[str, Any] = json.loads(text)
        if path is not None:
            file = Path(path)
            if file.is_dir():
                name = re.sub(r"[^\w-]", "_", self.group_name, flags=re.ASCII)[:64]
                file /= f"llcoll-{name}-{self.device_type}-rank{self.rank}-{os.getpid()}.json"
            file.write_text(text)
        return record

    def barrier(self) -> None:
        try:
            _ops.ops.barrier.default(self.group_name)
        except RuntimeError as error:
            raise converted(error) from None

    def shutdown(self) -> None:
        """Local: waits for no peer. A second call does nothing."""
        if not self._open:
            return
        self._open = False
        if _communicators.get((self.group_name, self.device_type)) is self:
            del _communicators[self.group_name, self.device_type]
        self._release()
        log.info("%r", self)

    @property
    def memory_name(self) -> str:
        """The group whose symmetric memory serves this one."""
        return self.group_name if self._spanning is None else self._spanning.inside_name

    def _release(self) -> None:
        self._backend.unregister(self.group_name)
        if self._spanning is not None:
            self._backend.unregister(self._spanning.inside_name)
        if self.device_type == "cuda":
            memory.release_cuda(self.memory_name)
        if self._spanning is not None:
            self._spanning.release()

    def __enter__(self) -> "Communicator":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.shutdown()

    def __repr__(self) -> str:
        state = "open" if self._open else "shut down"
        return (
            f"<llcoll.Communicator: group {self.group_name!r}, rank {self.rank} of "
            f"{self.world_size}, {self.device_type}, {state}>"
        )


def _make(communicator: Communicator, exchange: Exchange) -> None:
    chosen = communicator.settings
    arguments = spanning.options_of(
        communicator.group_name,
        communicator.rank,
        communicator.world_size,
        communicator.is_default,
        chosen,
        communicator.table.text,
    )
    if chosen.device == "cuda":
        arguments += memory.map_cuda(communicator, exchange, arguments)
    exchange.agree(lambda: communicator._backend.create(*arguments, exchange.all_gather))


def _find_nodes(
    group: dist.ProcessGroup, chosen: settings.Settings, exchange: Exchange
) -> tuple[topology.Nodes, list[str]]:
    """Told or found, the same on every rank; the hosts' names where they were asked for."""
    told = os.environ.get("LLCOLL_NODES", "")
    if not chosen.nodes and not told and exchange.world_size > 1:
        return topology.find(exchange, chosen.device)

    def read() -> topology.Nodes:
        if chosen.nodes:
            return topology.parse(chosen.nodes, exchange.world_size, "nodes")
        return topology.from_world(told, group) if told else [[0]]

    answers = exchange.agree(read)
    check_same("init", [{"nodes": answer} for answer in answers])
    return answers[0], []


def init(
    group: Any = None,
    *,
    device: str | torch.device | None = None,
    timeout: Any = None,
    policy: str = "fast",
    allow_low_precision: bool = False,
    scratch_bytes: int | None = None,
    pool_bytes: int | None = None,
    nodes: Any = None,
) -> Communicator:
    """Makes the group's communicator for a device type. Collective over the group.

    It succeeds on every rank or fails on every rank with the same text. Where the group has a
    communicator already, that one is returned. Use the result as a context manager, or call
    llcoll.shutdown().

    group: a process group, its name, or None for the default group.
    device: "cpu" or "cuda"; by default cuda where it can be.
    timeout: seconds (or a timedelta) that a call waits for a peer, 0 for ever; by default
        LLCOLL_TIMEOUT, or the process group's timeout.
    policy: "fast", or "invariant": only algorithms whose bits never vary.
    allow_low_precision: lets "fast" add 16-bit types in their own precision.
    scratch_bytes: the budget of memory for messages on their way.
    pool_bytes: memory for tensors of llcoll.empty on CUDA, 64 MiB by default, 0 for none.
    nodes: which ranks share a node, where that should not be found out: a number of equal nodes,
        their sizes ([3, 2]) or their ranks ([[0, 2], [1, 3]]). A group of several nodes works over
        torch.distributed between them (docs/scale.md). LLCOLL_NODES says the same of the default
        group's ranks ("2", "3+2", "0,2/1,3").
    """
    process_group = _find_process_group(group)
    exchange: Exchange | None = None

    def choose() -> dict[str, Any]:
        device_type = (
            _default_device(process_group) if device is None else torch.device(device).type
        )
        _ops.backend(device_type)
        chosen = settings.resolve(
            device_type,
            timeout,
            policy,
            allow_low_precision,
            scratch_bytes,
            pool_bytes,
            group_timeout(process_group),
            topology.text_of(nodes),
        )
        return chosen.as_dict()

    # Looked up before anything collective: every rank of the group has it, or none.
    kind = _default_device(process_group) if device is None else torch.device(device).type
    existing = _communicators.get((process_group.group_name, kind))
    if existing is not None:
        if existing.belongs_to(process_group):
            return existing
        existing.shutdown()  # of a group that was destroyed and whose name came back

    exchange = Exchange(process_group, "init")
    answers = exchange.agree(choose)
    check_same("init", answers)
    chosen = settings.Settings(**answers[exchange.rank])
    communicator = Communicator(process_group, chosen)
    try:
        with exchange.guard():
            found, hosts = _find_nodes(process_group, chosen, exchange)
            if len(found) > 1:
                spans = spanning.Spanning(found, communicator.group_name)
                communicator._spanning = spans
                spanning.make(communicator, spans, process_group, exchange, hosts)
            else:
                communicator.table = tables.choose(
                    chosen.device, chosen.policy, chosen.allow_low_precision, exchange
                )
                _make(communicator, exchange)
    except BaseException:
        communicator._release()
        raise
    _communicators[communicator.group_name, communicator.device_type] = communicator
    _ops_collectives.set_place(
        communicator.group_name,
        communicator.is_default,
        communicator.rank,
        communicator.world_size,
    )
    log.info("%r with %s, table %s", communicator, chosen, communicator.table.source)
    return communicator


def find_or_none(group: Any = None, device_type: str | None = None) -> Communicator | None:
    """The group's communicator; where it has two and no type is given, the CUDA one."""
    name = _key_of(group)
    found = [
        c
        for c in _communicators.values()
        if (c.is_default if name is None else c.group_name == name)
        and device_type in (None, c.device_type)
    ]
    return max(found, key=lambda c: c.device_type, default=None)


def find(group: Any = None, device_type: str | None = None) -> Communicator:
    """The same where there must be one."""
    found = find_or_none(group, device_type)
    if found is None:
        known = ", ".join(repr(c) for c in _communicators.values()) or "none"
        raise LlcollError(
            f"no communicator for group {_key_of(group) or 'default'!r}"
            f"{'' if device_type is None else ' on ' + device_type}; call llcoll.init() on every "
            f"rank of the group first (initialised here: {known})"
        )
    return found


def shutdown(group: Any = None, *, device: str | torch.device | None = None) -> None:
    """Ends the group's communicators (of one device type, if given). Local; twice is fine."""
    name = _key_of(group)
    kind = None if device is None else torch.device(device).type
    for c in list(_communicators.values()):
        if (c.is_default if name is None else c.group_name == name) and kind in (
            None,
            c.device_type,
        ):
            c.shutdown()


@atexit.register
def _at_exit() -> None:
    # Waits for nobody: peers may be gone. Signals must not call into an interpreter that ends.
    for backend in _ops.backends():
        backend.stop_signal_checks()
    memory.keep_cuda()
    for c in list(_communicators.values()):
        c.shutdown()
