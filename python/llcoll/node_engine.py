"""What the communicator of a group that spans nodes calls between them, and asks when it fails."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from . import topology
from ._errors import LlcollError
from .board import Board

log = logging.getLogger("llcoll")

_MAX_CALLS = 512  # prepared calls that an engine remembers
_POLL_S = 0.05
_SUM, _PRODUCT = dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT
_GATHER, _ALL_TO_ALL, _ALL_REDUCE, _BROADCAST = range(4)  # nodes.h: EngineCall::Kind
_LINK_WORDS = re.compile(
    r"time.?out|timed out|clos|reset|refused|broken pipe|unreach|abort|no route|peer", re.IGNORECASE
)


def margin(timeout_s: float) -> float:
    """How much longer than the engine a node's own waits last, so that the engine tells first."""
    return max(1.0, min(10.0, 0.2 * timeout_s))


@dataclass(frozen=True)
class Place:
    """Where this rank is among the nodes."""

    group_name: str
    rank: int
    nodes: topology.Nodes
    hosts_store: tuple[int, ...]  # nodes that may hold the rendezvous store
    timeout_s: float

    @property
    def node(self) -> int:
        return next(n for n, node in enumerate(self.nodes) if self.rank in node)

    @property
    def lane(self) -> int | None:
        index = self.nodes[self.node].index(self.rank)
        return index if index < min(map(len, self.nodes)) else None

    def name(self, node: int) -> str:
        return f"node {node} ({topology.ranks_text(self.nodes[node])})"


class Engine:
    """What the C++ communicator calls between nodes (nodes.h). Errors are what torch raised."""

    def __init__(
        self,
        place: Place,
        group: Any,
        through_host: bool,
        scratch: torch.Tensor,
        board: Board,
        store: dist.Store,
    ) -> None:
        self._place = place
        self._group = group
        self._scratch = scratch
        self._board = board
        self._store = store
        self._works: dict[int, Callable[[], None]] = {}
        self._calls: dict[tuple[Any, ...], Callable[[], Callable[[], None]]] = {}
        self._error: str | None = None
        # Through host memory, where the engine cannot read the GPU's.
        self._host: torch.Tensor | None = None
        self._lacks_graphs = through_host
        if through_host and group is not None:
            self._host = torch.empty(scratch.numel(), dtype=torch.uint8, pin_memory=True)

    def check_ready(self) -> None:
        """CUDA alone: host memory cannot be exchanged from inside a graph."""
        if (
            self._scratch.is_cuda
            and self._lacks_graphs
            and torch.cuda.is_current_stream_capturing()
        ):
            raise LlcollError(
                f"group {self._place.group_name!r} spans nodes, and the engine between them is not "
                "NCCL: its calls cannot be captured in a CUDA graph"
            )

    def start(
        self,
        kind: int,
        slot: int,
        send: int,
        receive: int,
        count: int,
        dtype: str,
        op: str,
        root: int,
    ) -> None:
        key = (kind, send, receive, count, dtype, op, root)
        call = self._calls.get(key)
        if call is None:
            if len(self._calls) >= _MAX_CALLS:
                self._calls.clear()
            call = self._calls[key] = self._prepare(*key)
        try:
            self._works[slot] = call()
        except BaseException as error:
            self._error = f"{error}"
            raise

    def wait(self, slot: int) -> None:
        try:
            self._works.pop(slot)()
        except BaseException as error:
            self._error = f"{error}"
            raise

    def _prepare(
        self, kind: int, send: int, receive: int, count: int, dtype: str, op: str, root: int
    ) -> Callable[[], Callable[[], None]]:
        """A function that starts the call and returns one that waits for it."""
        group = self._group
        assert group is not None, "this rank is in no lane"
        num_nodes = len(self._place.nodes)
        memory = self._scratch if self._host is None else self._host
        sent = count * num_nodes if kind == _ALL_TO_ALL else count
        if kind == _ALL_REDUCE:
            sent *= getattr(torch, dtype).itemsize
        source = memory[send : send + sent]
        target = memory[receive : receive + count * num_nodes]
        if kind == _ALL_REDUCE:
            target = source
            values = source.view(getattr(torch, dtype))
            options = dist.AllreduceOptions()
            options.reduceOp = _PRODUCT if op == "prod" else _SUM  # type: ignore[assignment]
            begin = lambda: group.allreduce([values], options)  # noqa: E731
        elif kind == _BROADCAST:
            target = source
            from_root = dist.BroadcastOptions()
            from_root.rootRank = root
            from_root.rootTensor = 0
            begin = lambda: group.broadcast([source], from_root)  # noqa: E731
        elif kind == _GATHER:
            begin = lambda: group._allgather_base(target, source)  # noqa: E731
        else:
            begin = lambda: group.alltoall_base(target, source, [], [])  # noqa: E731

        if self._host is None:

            def start() -> Callable[[], None]:
                work = begin()

                def wait() -> None:
                    work.wait()

                return wait

            return start

        on_device = self._scratch[send : send + sent]
        back = on_device if target is source else self._scratch[receive : receive + target.numel()]

        def start_staged() -> Callable[[], None]:
            source.copy_(on_device)  # waits for the stream
            work = begin()

            def wait() -> None:
                work.wait()
                back.copy_(target)

            return wait

        return start_staged

    def stop(self, reason: str) -> None:
        """Lets waits of this lane's group end, where its backend can."""
        del reason
        if self._group is not None:
            with contextlib.suppress(RuntimeError, NotImplementedError, AttributeError):
                self._group.abort()

    def explain(self, error: str) -> str:
        """The error to raise on this rank, with its class's name in front."""
        text = self._explained(error)
        self._board.post(text)
        log.error("%s", text)
        return text

    def _explained(self, error: str) -> str:
        place = self._place
        if "interrupted" in error:
            return error
        here = f"seen by rank {place.rank} of group {place.group_name!r}"
        patience = margin(place.timeout_s) + 1
        if self._error is None:
            # Of this node: a rank of a lane may know more.
            came_late = re.search(r"CollectiveTimeout: rank (\d+) did not arrive", error)
            # That rank asks for as long, and its store may take a while to give up.
            told = self._board.wait(0.5 if came_late else patience + 3)
            if told is not None:
                return told
            if came_late is None:
                return error
            who = place.nodes[place.node][int(came_late[1])]
            text = f"rank {who} of {place.name(place.node)} did not arrive"
            self._ask(text, 0.5)
            return f"CollectiveTimeout: {text}, {here} ({error})"
        said = self._error.strip().splitlines()[0] if self._error.strip() else "no reason"
        answers = self._ask("", patience)
        self.stop(error)
        others = [n for n in range(len(place.nodes)) if n != place.node]
        if answers is None:
            holders = [n for n in place.hosts_store if n != place.node]
            if holders and place.node not in place.hosts_store:
                names = " or ".join(place.name(n) for n in holders)
                return (
                    f"CollectiveTimeout: {names}, with the rendezvous store, cannot be reached; "
                    f"nothing is known of other nodes; {here} ({said})"
                )
            return f"CollectiveTimeout: no other node can be asked who is there; {here} ({said})"
        known = sorted({text for text in answers.values() if text})
        silent = [n for n in others if not any(r in answers for r in place.nodes[n])]
        parts = [*known, *(f"{place.name(n)} cannot be reached" for n in silent)]
        if parts:
            return f"CollectiveTimeout: {'; '.join(parts)}; {here} ({said})"
        kind = "CollectiveTimeout" if _LINK_WORDS.search(said) else "LlcollError"
        return f"{kind}: an exchange between nodes failed, though all nodes answer; {here} ({said})"

    def _ask(self, own: str, patience: float) -> dict[int, str] | None:
        """Tells the other nodes that this rank has failed and hears who else has: its text, by
        rank. None if the store does not answer."""
        answers: dict[int, str] = {}
        reached = threading.Event()
        place = self._place
        keys = {
            rank: str(rank)
            for n, ranks in enumerate(place.nodes)
            if n != place.node
            for rank in ranks
        }

        def ask() -> None:
            with contextlib.suppress(RuntimeError):
                store = self._store.clone() if hasattr(self._store, "clone") else self._store
                store.set(str(place.rank), json.dumps(own))
                reached.set()
                deadline = time.monotonic() + patience
                while time.monotonic() < deadline:
                    for rank, key in keys.items():
                        if rank not in answers and store.check([key]):
                            answers[rank] = json.loads(store.get(key))
                    silent = [
                        n
                        for n, ranks in enumerate(place.nodes)
                        if n != place.node and not any(r in answers for r in ranks)
                    ]
                    if not silent and (time.monotonic() > deadline - patience + 0.5):
                        return
                    time.sleep(_POLL_S)

        # A thread of its own: over a dead link the store's client blocks for minutes.
        thread = threading.Thread(target=ask, name="llcoll ask", daemon=True)
        thread.start()
        thread.join(patience + 0.5)
        return dict(answers) if reached.is_set() else None
