"""One rank's part of the symmetric pool: which bytes are taken. Local: no rank asks another."""

import bisect
import threading
from collections import deque

from ._errors import LlcollError

ALIGNMENT = 256


def round_up(num_bytes: int) -> int:
    return (num_bytes + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


class Pool:
    """First fit over a sorted list of gaps; neighbours that are free become one gap."""

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self._gaps = [(0, num_bytes)] if num_bytes > 0 else []  # (offset, bytes)
        self._lock = threading.Lock()
        # Tensors may die in the middle of anything, take() included: they only leave a note.
        self._given_back: deque[tuple[int, int]] = deque()

    def take(self, num_bytes: int) -> tuple[int, int]:
        """Offset and bytes of a block of at least `num_bytes`; to be given to give_back()."""
        wanted = max(round_up(num_bytes), ALIGNMENT)
        with self._lock:
            self._collect()
            for idx, (offset, size) in enumerate(self._gaps):
                if size < wanted:
                    continue
                if size == wanted:
                    del self._gaps[idx]
                else:
                    self._gaps[idx] = (offset + wanted, size - wanted)
                return offset, wanted
            free = sum(size for _, size in self._gaps)
            largest = max((size for _, size in self._gaps), default=0)
        raise LlcollError(
            f"the symmetric pool is full: {num_bytes} bytes wanted, {free} of {self.num_bytes} "
            f"free, the largest gap has {largest}; release tensors of llcoll.empty, or give "
            "llcoll.init more pool_bytes (LLCOLL_POOL_BYTES)"
        )

    def give_back(self, offset: int, num_bytes: int) -> None:
        """From any thread, finalizers too."""
        self._given_back.append((offset, num_bytes))

    @property
    def free_bytes(self) -> int:
        with self._lock:
            self._collect()
            return sum(size for _, size in self._gaps)

    def _collect(self) -> None:
        while self._given_back:
            offset, size = self._given_back.popleft()
            at = bisect.bisect_left(self._gaps, (offset, 0))
            if at < len(self._gaps) and offset + size == self._gaps[at][0]:
                size += self._gaps.pop(at)[1]
            if at > 0 and sum(self._gaps[at - 1]) == offset:
                at -= 1
                before, before_size = self._gaps.pop(at)
                offset, size = before, before_size + size
            self._gaps.insert(at, (offset, size))
