"""Which ranks of a group share a node: found by trying, or told."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ._errors import LlcollError
from .rendezvous import Exchange

Nodes = list[list[int]]  # ranks of the group, growing; nodes in the order of their lowest rank
Given = int | Sequence[Any]
_CONNECT_S = 5.0


def text_of(nodes: Given | None) -> str:
    """`nodes=` as a setting that ranks compare: "2", "3+2" or "0,1/2,3"; "" for None."""
    if nodes is None:
        return ""
    if isinstance(nodes, str):
        return nodes
    if isinstance(nodes, int):
        return str(nodes)
    parts = list(nodes)
    if parts and all(isinstance(part, int) for part in parts):
        return "+".join(map(str, parts))
    return "/".join(",".join(map(str, part)) for part in parts)


def parse(text: str, num_ranks: int, what: str) -> Nodes:
    """The nodes that a setting names. Raises LlcollError with the setting."""

    def bad(why: str) -> LlcollError:
        return LlcollError(
            f"{what} is {text!r}: {why}; write a number of equal nodes (2), their sizes (3+2) or "
            f"their ranks (0,1/2,3), {num_ranks} ranks in all"
        )

    try:
        if "/" in text or "," in text:
            nodes = [sorted(int(r) for r in part.split(",")) for part in text.split("/")]
        else:
            sizes = [int(part) for part in text.split("+")]
            if len(sizes) == 1:
                count = sizes[0]
                if count < 1 or num_ranks % count:
                    raise bad(f"{num_ranks} ranks do not make {count} equal nodes")
                sizes = [num_ranks // count] * count
            if min(sizes) < 1:
                raise bad("a node without ranks")
            ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
            nodes = [list(range(end - size, end)) for size, end in zip(sizes, ends, strict=True)]
    except ValueError:
        raise bad("that is not a list of numbers") from None
    if sorted(r for node in nodes for r in node) != list(range(num_ranks)):
        raise bad("every rank must be in one node")
    return sorted(nodes)


def from_world(text: str, group: dist.ProcessGroup) -> Nodes:
    """LLCOLL_NODES speaks of the default group's ranks: what that means for `group`."""
    world = parse(text, dist.get_world_size(), "LLCOLL_NODES")
    node_of = {rank: index for index, node in enumerate(world) for rank in node}
    members = [node_of[rank] for rank in dist.get_process_group_ranks(group)]
    return [[r for r, node in enumerate(members) if node == n] for n in dict.fromkeys(members)]


def _boot_id() -> str:
    """One per start of a kernel: the same for all of a machine's containers."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return socket.gethostname()


def _reaches(name: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_CONNECT_S)
        try:
            probe.connect("\0" + name)
        except OSError:
            return False
        return True


def find(exchange: Exchange, device_type: str) -> tuple[Nodes, list[str]]:
    """The nodes, and each rank's host name. Collective; the same on every rank.

    Ranks share a node if they reach each other's sockets in the abstract namespace, over which
    llcoll hands shared memory on (so not across network namespaces of one host), and on CUDA if
    their GPUs can map each other's memory.
    """
    with contextlib.ExitStack() as stack:
        name = f"llcoll-probe-{secrets.token_hex(16)}"
        if exchange.world_size > 1 and os.name == "posix":
            server = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            server.bind("\0" + name)
            server.listen(exchange.world_size)
        mine: dict[str, Any] = {"boot": _boot_id(), "name": name, "host": socket.gethostname()}
        if device_type == "cuda":
            mine["gpu"] = torch.cuda.current_device()
        every = exchange.all_gather_json(mine)

        def reaches(other: dict[str, Any]) -> bool:
            if other["boot"] != mine["boot"] or not _reaches(other["name"]):
                return False
            if device_type != "cuda" or other["gpu"] == mine["gpu"]:
                return True
            try:
                return torch.cuda.can_device_access_peer(mine["gpu"], other["gpu"])
            except (AssertionError, RuntimeError):
                return False  # not visible to this process

        row = [r == exchange.rank or reaches(other) for r, other in enumerate(every)]
        rows = exchange.all_gather_json(row)
    hosts = [str(one["host"]) for one in every]
    nodes: Nodes = []
    for rank in range(exchange.world_size):
        # A rank joins the first node all of whose ranks it reaches, both ways.
        for node in nodes:
            if all(rows[rank][other] and rows[other][rank] for other in node):
                node.append(rank)
                break
        else:
            nodes.append([rank])
    return nodes, hosts


def ranks_text(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def describe(group_name: str, nodes: Nodes, hosts: Sequence[str]) -> str:
    parts = [
        f"node {n} ({hosts[node[0]]}): {ranks_text(node)}"
        if hosts
        else f"node {n}: {ranks_text(node)}"
        for n, node in enumerate(nodes)
    ]
    return f"llcoll: group {group_name!r} spans {len(nodes)} nodes; " + "; ".join(parts)
