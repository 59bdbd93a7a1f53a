"""A page of memory that the ranks of one node share: why the group's collectives ended."""

from __future__ import annotations

import mmap
import os
import time

from .rendezvous import Exchange

_PLACE = 4096
_TEXT = _PLACE - 8


class Board:
    """Each rank has a place, which it writes once; the others read. Nobody waits for a writer."""

    def __init__(self, exchange: Exchange) -> None:
        self._rank = exchange.rank
        self._count = exchange.world_size
        size = _PLACE * self._count
        first = self._rank == 0
        file = os.memfd_create("llcoll-board") if first else -1
        if first:
            os.ftruncate(file, size)
        # Not a name in a file system, which a killed rank would leave behind.
        where = exchange.all_gather(f"/proc/{os.getpid()}/fd/{file}".encode())[0].decode()

        def open_it() -> None:
            nonlocal file
            if not first:
                file = os.open(where, os.O_RDWR | os.O_CLOEXEC)
            self._memory = mmap.mmap(file, size)
            os.close(file)

        # The first rank keeps its file open until all have theirs.
        if first:
            exchange.agree(lambda: None)
            open_it()
        else:
            exchange.agree(open_it)

    def post(self, text: str) -> None:
        data = text.encode()[:_TEXT]
        at = self._rank * _PLACE
        if self._memory[at]:
            return
        self._memory[at + 8 : at + 8 + len(data)] = data
        self._memory[at + 4 : at + 8] = len(data).to_bytes(4, "little")
        # Last: x86 and the interpreter's own calls keep the order, and a torn text is still text.
        self._memory[at] = 1

    def read(self) -> str | None:
        """What another rank of the node has posted."""
        for rank in range(self._count):
            at = rank * _PLACE
            if rank != self._rank and self._memory[at]:
                length = int.from_bytes(self._memory[at + 4 : at + 8], "little")
                return self._memory[at + 8 : at + 8 + min(length, _TEXT)].decode(errors="replace")
        return None

    def wait(self, seconds: float) -> str | None:
        deadline = time.monotonic() + seconds
        while (text := self.read()) is None and time.monotonic() < deadline:
            time.sleep(0.01)
        return text
