"""Groups that span nodes: the engine between them is torch.distributed, one group per lane."""

from __future__ import annotations

import contextlib
import logging
import socket
import sys
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from . import memory, tables, topology
from .board import Board
from .node_engine import Engine, Place, margin
from .rendezvous import Exchange

if TYPE_CHECKING:
    from .communicator import Communicator

log = logging.getLogger("llcoll")

ALGORITHMS = ("leaders", "lanes", "torch")
"""What serves a group that spans nodes; the other names say what runs inside each node."""

_FOREVER = timedelta(days=10_000)
_CHUNK = {"cpu": 4 << 20, "cuda": 8 << 20}


def node_exchange(exchange: Exchange, nodes: topology.Nodes) -> Exchange:
    index = next(n for n, node in enumerate(nodes) if exchange.rank in node)
    return exchange.among(nodes[index], f"node {index}")


def _backend_name(group: dist.ProcessGroup, device_type: str) -> str:
    name = str(group._get_backend(torch.device(device_type)).name())
    return name.lower()


def _limit(timeout_s: float) -> timedelta:
    return timedelta(seconds=timeout_s) if timeout_s > 0 else _FOREVER


def _lane_engine(
    store: dist.Store, node: int, num_nodes: int, backend: str, timeout_s: float
) -> Any:
    """torch.distributed's engine for one lane, whose ranks are the nodes.

    Not a process group of torch's registry: names there are drawn from counts that differ between
    ranks which are in different numbers of groups. CPU groups of any backend get Gloo.
    """
    if backend == "nccl":
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = _limit(timeout_s)
        return dist.ProcessGroupNCCL(store, node, num_nodes, options)
    return dist.ProcessGroupGloo(store, node, num_nodes, _limit(timeout_s))


class Spanning:
    """What a communicator over several nodes holds besides its own."""

    def __init__(self, nodes: topology.Nodes, group_name: str) -> None:
        self.nodes = nodes
        self.inside_name = f"{group_name}/node"
        self.scratch: torch.Tensor | None = None
        self.engine: Engine | None = None

    def release(self) -> None:
        """After the backend has forgotten both communicators."""
        self.engine = None


def _holds_store(group: dist.ProcessGroup) -> bool:
    """Whether the rendezvous store's address is this host's."""
    store = c10d._get_process_group_store(group)
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    host = getattr(store, "host", None)
    if not isinstance(host, str):
        return False
    try:
        for family, kind, _, _, address in socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM):
            with socket.socket(family, kind) as probe, contextlib.suppress(OSError):
                probe.bind(address)
                return True
    except OSError:
        return False
    return False


@dataclass
class _Inside:
    """The node's own communicator, as far as memory.map_cuda looks at it."""

    group_name: str
    settings: Any
    _backend: Any


def make(
    communicator: Communicator,
    spanning: Spanning,
    group: dist.ProcessGroup,
    exchange: Exchange,
    hosts: list[str],
) -> None:
    """Makes the communicators of the node and of the whole group in the backend. Collective.

    Where it raises, the caller releases what `spanning` holds.
    """
    chosen = communicator.settings
    backend = communicator._backend
    nodes = spanning.nodes
    inner = node_exchange(exchange, nodes)
    if exchange.rank == 0:
        print(topology.describe(communicator.group_name, nodes, hosts), file=sys.stderr, flush=True)

    node_timeout = chosen.timeout + margin(chosen.timeout) if chosen.timeout > 0 else 0.0
    inside_settings = replace(
        chosen,
        timeout=node_timeout,
        algorithm="auto" if chosen.algorithm in ALGORITHMS else chosen.algorithm,
    )
    whole_settings = replace(
        chosen, algorithm=chosen.algorithm if chosen.algorithm in ALGORITHMS else "auto"
    )
    table = exchange.agree_alike(
        lambda: tables.choose(chosen.device, chosen.policy, chosen.allow_low_precision, inner)
    )
    arguments = options_of(
        spanning.inside_name, inner.rank, inner.world_size, False, inside_settings, table.text, True
    )

    def make_inside() -> None:
        own = arguments
        if chosen.device == "cuda":
            part = _Inside(spanning.inside_name, inside_settings, backend)
            own += memory.map_cuda(part, inner, own)  # type: ignore[arg-type]
        inner.agree(lambda: backend.create(*own, inner.all_gather))

    exchange.agree_alike(make_inside)
    holders = exchange.all_gather_json(_holds_store(group))
    place = Place(
        communicator.group_name,
        exchange.rank,
        nodes,
        tuple(n for n, node in enumerate(nodes) if any(holders[r] for r in node)),
        chosen.timeout,
    )
    chunk = chosen.node_chunk_bytes or _CHUNK[chosen.device]
    receive = max(2 * chunk, 4096 * len(nodes))

    def make_whole() -> None:
        lane_engine = None
        is_nccl = chosen.device == "cuda" and _backend_name(group, "cuda") == "nccl"
        if place.lane is not None:
            lane_engine = _lane_engine(
                exchange.store(f"lane {place.lane}"),
                place.node,
                len(nodes),
                "nccl" if is_nccl else "gloo",
                chosen.timeout,
            )
        device = (
            "cpu" if chosen.device == "cpu" else torch.device("cuda", torch.cuda.current_device())
        )
        through_host = chosen.device == "cuda" and not is_nccl
        num_bytes = backend.nodes_scratch_bytes(chunk, receive)
        spanning.scratch = torch.empty(num_bytes, dtype=torch.uint8, device=device)
        spanning.engine = Engine(
            place,
            lane_engine,
            through_host,
            spanning.scratch,
            board,
            exchange.store("failures"),
        )
        node_of = {rank: n for n, node in enumerate(nodes) for rank in node}
        backend.create_nodes(
            *options_of(
                communicator.group_name,
                exchange.rank,
                exchange.world_size,
                communicator.is_default,
                whole_settings,
                "",
            ),
            spanning.inside_name,
            [node_of[rank] for rank in range(exchange.world_size)],
            spanning.scratch.data_ptr(),
            chunk,
            receive,
            spanning.engine,
            chosen.device == "cuda",
        )

    board = exchange.agree_alike(lambda: Board(inner))
    exchange.agree_alike(make_whole)


def options_of(
    group_name: str,
    rank: int,
    world_size: int,
    is_default: bool,
    chosen: Any,
    table: str,
    patient: bool = False,
) -> tuple[Any, ...]:
    """The leading arguments of a backend's create functions."""
    return (
        group_name,
        rank,
        world_size,
        is_default,
        chosen.timeout,
        chosen.policy,
        chosen.allow_low_precision,
        chosen.scratch_bytes,
        chosen.algorithm,
        chosen.debug,
        chosen.first_epoch,
        table,
        chosen.pool_bytes,
        patient,
    )
