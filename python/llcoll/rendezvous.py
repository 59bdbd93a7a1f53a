"""Exchanges of bytes between the ranks of a group, over its process group's store. All bounded."""

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, NoReturn, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from ._errors import CollectiveTimeout, LlcollError

T = TypeVar("T")

_DEFAULT_TIMEOUT_S = 1800.0
_FIRST_PAUSE_S = 0.0002
_LONGEST_PAUSE_S = 0.02
# What a round's payload is: bytes of the caller, or [failure or null, value] in JSON. A rank that
# has failed alone sends the second where its peers send the first.
_RAW = b"r"
_AGREE = b"a"


def group_timeout(group: dist.ProcessGroup) -> float:
    """The process group's own timeout, in seconds."""
    for device in ("cpu", "cuda"):
        try:
            options = group._get_backend(torch.device(device)).options
            timeout = getattr(options, "_timeout", None)
        except (RuntimeError, AttributeError):
            continue
        if isinstance(timeout, timedelta):
            return timeout.total_seconds()
    return _DEFAULT_TIMEOUT_S


class Exchange:
    """One series of collective exchanges, which a group makes for one purpose.

    Every rank counts its own series in the store: ranks that make the same calls agree on the
    number without drawing a name, so equally seeded random generators cannot make two clash, and
    keys that a failed attempt left behind are never read again.
    """

    def __init__(self, group: dist.ProcessGroup, purpose: str) -> None:
        self.rank = group.rank()
        self.world_size = group.size()
        self.timeout_s = group_timeout(group)
        self._what = f"{purpose} of group {group.group_name!r}"
        store = dist.PrefixStore(f"llcoll/{purpose}", c10d._get_process_group_store(group))
        series = store.add(f"series/{self.rank}", 1)
        self._store = dist.PrefixStore(str(series), store)
        self._step = 0
        self._is_over = False  # every rank has been told of a failure, or is not in step any more

    def among(self, ranks: list[int], name: str) -> "Exchange":
        """The same between some of the ranks, which this one is of; they count from 0."""
        other = object.__new__(Exchange)
        other.rank = ranks.index(self.rank)
        other.world_size = len(ranks)
        other.timeout_s = self.timeout_s
        other._what = f"{self._what}, {name}"
        other._store = dist.PrefixStore(name, self._store)
        other._step = 0
        other._is_over = False
        return other

    def store(self, name: str) -> dist.Store:
        """A part of the store for other purposes of this series."""
        return dist.PrefixStore(name, self._store)

    def all_gather(self, payload: bytes) -> list[bytes]:
        """Each rank's payload, in rank order.

        Where a rank has failed at some other point of the series, that failure is raised, with the
        same text on every rank.
        """
        payloads = self._round(_RAW + payload)
        if any(not one.startswith(_RAW) for one in payloads):
            self._raise_failures(payloads)
        return [one.removeprefix(_RAW) for one in payloads]

    def all_gather_json(self, value: Any) -> list[Any]:
        return [json.loads(text) for text in self.all_gather(json.dumps(value).encode())]

    def _round(self, payload: bytes) -> list[bytes]:
        """Each rank's payload, in rank order. Ctrl-C works; a missing rank is named."""
        keys = [f"{self._step}/{rank}" for rank in range(self.world_size)]
        self._store.set(keys[self.rank], payload)  # type: ignore[arg-type]
        deadline = time.monotonic() + self.timeout_s
        pause = _FIRST_PAUSE_S
        # Polled: a blocking wait would see no signal.
        while not self._store.check(keys):
            if time.monotonic() > deadline:
                missing = [rank for rank, key in enumerate(keys) if not self._store.check([key])]
                who = f"rank{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}"
                self._is_over = True
                raise CollectiveTimeout(
                    f"{self._what}: {who} did not arrive within "
                    f"{self.timeout_s:g} s (step {self._step}, seen by rank {self.rank})"
                )
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)
        payloads = [bytes(self._store.get(key)) for key in keys]
        # Whoever is in this step has read everything of the one before.
        if self._step > 0:
            self._store.delete_key(f"{self._step - 1}/{self.rank}")
        self._step += 1
        return payloads

    def agree(self, own: Callable[[], T]) -> list[T]:
        """What `own` returned on each rank; if it raised anywhere, the same error on every rank.

        The result must be fit for JSON. KeyboardInterrupt and the like are not exchanged. `own` may
        use the exchange itself; where it fails on a rank alone, its peers' next round says so.
        """
        value: T | None = None
        failure: str | None = None
        cause: Exception | None = None
        try:
            value = own()
        except Exception as error:
            if self._is_over:
                raise
            failure = f"{type(error).__name__}: {error}"
            cause = error
        payloads = self._round(_AGREE + json.dumps([failure, value]).encode())
        answers: list[Any] = [
            json.loads(one[1:]) if one.startswith(_AGREE) else None for one in payloads
        ]
        if any(answer is None or answer[0] is not None for answer in answers):
            self._raise_failures(payloads, cause)
        return [answer[1] for answer in answers]

    def _raise_failures(self, payloads: list[bytes], cause: Exception | None = None) -> NoReturn:
        self._is_over = True
        where: dict[str, list[str]] = {}
        for rank, payload in enumerate(payloads):
            text = json.loads(payload[1:])[0] if payload.startswith(_AGREE) else None
            if text is not None:
                where.setdefault(text.removeprefix("LlcollError: "), []).append(str(rank))
        detail = "; ".join(
            f"rank{'s' if len(ranks) > 1 else ''} {', '.join(ranks)}: {text}"
            for text, ranks in where.items()
        )
        raise LlcollError(
            f"{self._what} failed: {detail or 'the ranks are not at the same step'}"
        ) from cause

    @contextlib.contextmanager
    def guard(self) -> Iterator[None]:
        """Whatever is raised inside, on any rank, comes out on every rank, with the same text."""
        try:
            yield
        except Exception as error:
            if self._is_over:
                raise
            failed = error
        else:
            return

        def again() -> None:
            raise failed

        self.agree(again)

    def agree_alike(self, own: Callable[[], T]) -> T:
        """agree() for what need not travel: this rank's own result."""
        results: list[T] = []
        self.agree(lambda: results.append(own()))
        return results[0]


def check_same(what: str, values: list[dict[str, Any]]) -> None:
    """Raises, alike on every rank, if the ranks' dictionaries differ; names all values."""
    for key in values[0]:
        seen = [value.get(key) for value in values]
        if any(value != seen[0] for value in seen):
            detail = ", ".join(f"rank {rank}: {value!r}" for rank, value in enumerate(seen))
            raise LlcollError(f"{what}: the ranks disagree on {key} ({detail})")
