"""Which outcomes does the PTX memory model allow? Every candidate execution of a small program.

After NVIDIA's PTX ISA, section "Memory Consistency Model" (PTX 6.0 and later; the axioms are
those of PTX 8): program order, morally strong pairs, release and acquire patterns, observation,
causality and communication order, and the six axioms. Kept from it: scopes, vectors as words in
no order, one wide access as one operation (complete overlap only). Left out: proxies (all
accesses here are generic), mixed sizes.

    W(cells, values), R(cells, registers), A(cell, addend, register), F(kind), B(id), K(id)

`cells` is one name, or several for ONE access of several words; V() makes a vector instead.
An order is weak, relaxed, acquire or release, a scope cta, gpu or sys; a fence acq_rel or sc.
B is a barrier of a CTA. K is a kernel boundary of one rank: CUDA orders whole kernels of a
stream; here it is fence.acq_rel.sys, a barrier of all threads that name it, and the fence again.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

Value = int | str  # a register's name: the value read there (a data dependency)


@dataclass(frozen=True)
class Op:
    kind: str
    cells: tuple[str, ...] = ()
    values: tuple[Value, ...] = ()
    registers: tuple[str, ...] = ()
    order: str = "relaxed"
    scope: str = "sys"
    vector: int = 0  # words of one vector share a number: no program order among them


def _tuple(what: object) -> tuple:
    return what if isinstance(what, tuple) else (what,)


def W(cells, values, order: str = "relaxed", scope: str = "sys") -> Op:
    return Op("W", _tuple(cells), _tuple(values), order=order, scope=scope)


def R(cells, registers, order: str = "relaxed", scope: str = "sys") -> Op:
    return Op("R", _tuple(cells), registers=_tuple(registers), order=order, scope=scope)


def A(cell: str, addend: int, register: str, order: str = "relaxed", scope: str = "sys") -> Op:
    """Atomic addition; `register` gets the old value."""
    return Op("A", (cell,), (addend,), (register,), order, scope)


def F(kind: str = "acq_rel", scope: str = "sys") -> Op:
    return Op("F", order=kind, scope=scope)


def B(name: str) -> Op:
    return Op("B", (name,))


def K(name: str) -> list[Op]:
    return [F(), B(name), F()]


_vectors = itertools.count(1)


def V(op: Op) -> list[Op]:
    """The words of a vector access: as many operations, in no order."""
    number = next(_vectors)
    return [
        Op(
            op.kind,
            (cell,),
            op.values[i : i + 1],
            op.registers[i : i + 1],
            op.order,
            op.scope,
            number,
        )
        for i, cell in enumerate(op.cells)
    ]


@dataclass(frozen=True)
class Thread:
    ops: list
    gpu: int = 0
    cta: int = 0


@dataclass(eq=False)
class Event:
    idx: int
    thread: int
    op: Op
    position: int
    sources: dict[str, int] = field(default_factory=dict)  # of a read: cell -> write event


def _flatten(ops: list) -> list[Op]:
    flat: list[Op] = []
    for op in ops:
        flat += op if isinstance(op, list) else [op]
    return flat


def _closure(rows: list[int]) -> list[int]:
    rows = list(rows)
    for k in range(len(rows)):
        bit = 1 << k
        for i in range(len(rows)):
            if rows[i] & bit:
                rows[i] |= rows[k]
    return rows


def _has_cycle(rows: list[int]) -> bool:
    return any(row >> i & 1 for i, row in enumerate(_closure(rows)))


class Execution:
    """Relations of one candidate. A relation is a row of bits for each event."""

    def __init__(self, threads: list[Thread], controlled: bool) -> None:
        self.threads = threads
        self.controlled = controlled
        self.events: list[Event] = []
        cells = sorted(
            {c for t in threads for op in _flatten(t.ops) if op.kind in "WRA" for c in op.cells}
        )
        for cell in cells:
            self._add(-1, W(cell, 0), 0)
        for number, thread in enumerate(threads):
            for position, op in enumerate(_flatten(thread.ops)):
                self._add(number, op, position)
        self.cells = cells
        n = len(self.events)
        self.po = [0] * n
        for a, b in itertools.permutations(self.events, 2):
            if a.thread < 0 <= b.thread or (
                a.thread == b.thread >= 0
                and a.position < b.position
                and not (a.op.vector and a.op.vector == b.op.vector)
            ):
                self.po[a.idx] |= 1 << b.idx
        self.reads = [e for e in self.events if e.op.kind in "RA"]
        self.writes = [e for e in self.events if e.op.kind in "WA"]
        self.strong_pairs = [[self._morally_strong(a, b) for b in self.events] for a in self.events]
        self.barriers = [0] * n
        for a, b in itertools.permutations(self.events, 2):
            if a.op.kind == b.op.kind == "B" and a.op.cells == b.op.cells:
                self.barriers[a.idx] |= 1 << b.idx
        self.before = _closure([a | b for a, b in zip(self.po, self.barriers, strict=True)])
        self.releases, self.acquires = self._patterns()

    def _add(self, thread: int, op: Op, position: int) -> None:
        self.events.append(Event(len(self.events), thread, op, position))

    def _includes(self, scope: str, a: Event, b: Event) -> bool:
        if a.thread < 0 or b.thread < 0 or scope == "sys":
            return True
        x, y = self.threads[a.thread], self.threads[b.thread]
        return x.gpu == y.gpu and (scope == "gpu" or x.cta == y.cta)

    @staticmethod
    def _is_strong(e: Event) -> bool:
        return e.op.kind == "F" or e.op.order != "weak"

    def _morally_strong(self, a: Event, b: Event) -> bool:
        related = self.po[a.idx] >> b.idx & 1 or self.po[b.idx] >> a.idx & 1
        both = (
            self._is_strong(a)
            and self._is_strong(b)
            and self._includes(a.op.scope, a, b)
            and self._includes(b.op.scope, b, a)
        )
        memory = a.op.kind in "WRA" and b.op.kind in "WRA"
        # The initial write is one for each cell: it overlaps whatever reads it.
        whole = a.op.cells == b.op.cells or a.thread < 0 or b.thread < 0
        return bool(related or both) and (not memory or whole)

    def _patterns(self) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        releases, acquires = [], []
        for w in self.writes:
            if w.thread < 0 or not self._is_strong(w):
                continue
            if w.op.order == "release":
                releases.append((w.idx, w.idx))
            for before in self.events:
                if self.po[before.idx] >> w.idx & 1 and (
                    before.op.kind == "F"
                    or (before.op.order == "release" and before.op.cells == w.op.cells)
                ):
                    releases.append((before.idx, w.idx))
        for r in self.reads:
            if not self._is_strong(r):
                continue
            if r.op.order == "acquire":
                acquires.append((r.idx, r.idx))
            for after in self.events:
                if self.po[r.idx] >> after.idx & 1 and (
                    after.op.kind == "F"
                    or (after.op.order == "acquire" and after.op.cells == r.op.cells)
                ):
                    acquires.append((r.idx, after.idx))
        return releases, acquires

    def _choices(self) -> Iterator[None]:
        slots = [(r, cell) for r in self.reads for cell in r.op.cells]
        options = [
            [w.idx for w in self.writes if cell in w.op.cells and w is not r] for r, cell in slots
        ]
        for picked in itertools.product(*options):
            for (r, cell), source in zip(slots, picked, strict=True):
                r.sources[cell] = source
            yield

    def _coherences(self) -> Iterator[list[int]]:
        """Orders of all overlapping writes, as rows; the initial ones come first."""
        groups: list[list[Event]] = []
        for w in self.writes:
            if w.thread < 0:
                continue
            touching = [g for g in groups if any(set(w.op.cells) & set(o.op.cells) for o in g)]
            merged = [w] + [e for g in touching for e in g]
            groups = [g for g in groups if g not in touching] + [merged]
        for orders in itertools.product(*(itertools.permutations(g) for g in groups)):
            rows = [0] * len(self.events)
            for order in orders:
                for i, a in enumerate(order):
                    for b in order[i + 1 :]:
                        if set(a.op.cells) & set(b.op.cells):
                            rows[a.idx] |= 1 << b.idx
            for init in self.writes:
                for w in self.writes:
                    if init.thread < 0 <= w.thread and init.op.cells[0] in w.op.cells:
                        rows[init.idx] |= 1 << w.idx
            yield rows

    def outcomes(self) -> set[frozenset[tuple[str, int]]]:
        found: set[frozenset[tuple[str, int]]] = set()
        fences = [e.idx for e in self.events if e.op.kind == "F" and e.op.order == "sc"]
        coherences = list(self._coherences())
        for _ in self._choices():
            values = self._values()
            if values is None:
                continue  # out of thin air
            observed = self._observation()
            for order in itertools.permutations(fences):
                cause = self._causality(observed, order)
                if cause is None:
                    continue
                for co in coherences:
                    outcome = self._outcome(values, co)
                    if outcome not in found and self._is_consistent(cause, co):
                        found.add(outcome)
        return found

    def _depends(self) -> list[int]:
        rows = [0] * len(self.events)
        for r in self.reads:
            for source in r.sources.values():
                rows[source] |= 1 << r.idx
            for w in self.writes:
                follows = w.thread == r.thread and self.po[r.idx] >> w.idx & 1
                uses = follows and set(w.op.values) & set(r.op.registers)
                if uses or (self.controlled and self.before[r.idx] >> w.idx & 1):
                    rows[r.idx] |= 1 << w.idx
        return rows

    def _values(self) -> dict[tuple[int, str], int] | None:
        """(event, cell) -> what was read (reads) or written (writes); None if self-satisfying."""
        if _has_cycle(self._depends()):
            return None
        written: dict[tuple[int, str], int] = {}
        read: dict[tuple[int, str], int] = {}
        registers: dict[str, int] = {}

        def value_written(idx: int, cell: str) -> int:
            if (idx, cell) not in written:
                op = self.events[idx].op
                value = op.values[op.cells.index(cell)]
                if isinstance(value, str):
                    value = register(value)
                if op.kind == "A":
                    value += value_read(self.events[idx], cell)
                written[idx, cell] = value
            return written[idx, cell]

        def value_read(r: Event, cell: str) -> int:
            if (r.idx, cell) not in read:
                read[r.idx, cell] = value_written(r.sources[cell], cell)
            return read[r.idx, cell]

        def register(name: str) -> int:
            if name not in registers:
                for r in self.reads:
                    if name in r.op.registers:
                        registers[name] = value_read(r, r.op.cells[r.op.registers.index(name)])
            return registers[name]

        result: dict[tuple[int, str], int] = {}
        for w in self.writes:
            for cell in w.op.cells:
                result[-1 - w.idx, cell] = value_written(w.idx, cell)
        for r in self.reads:
            for cell in r.op.cells:
                result[r.idx, cell] = value_read(r, cell)
        return result

    def _observation(self) -> list[int]:
        rows = [0] * len(self.events)
        for r in self.reads:
            for source in r.sources.values():
                if self.strong_pairs[source][r.idx]:
                    rows[source] |= 1 << r.idx
        atomics = [e.idx for e in self.events if e.op.kind == "A"]
        for _ in atomics:
            for z in atomics:
                for i in range(len(rows)):
                    if rows[i] >> z & 1:
                        rows[i] |= rows[z]
        return rows

    def _causality(self, observed: list[int], sc: tuple[int, ...]) -> list[int] | None:
        rows = [a | b for a, b in zip(self.po, self.barriers, strict=True)]
        for first, write in self.releases:
            for read, last in self.acquires:
                if observed[write] >> read & 1 and self.strong_pairs[first][last]:
                    rows[first] |= 1 << last
        for i, a in enumerate(sc):
            for b in sc[i + 1 :]:
                if self.strong_pairs[a][b]:
                    rows[a] |= 1 << b
        base = _closure(rows)
        cause = list(base)
        for i in range(len(cause)):
            for z in range(len(cause)):
                if observed[i] >> z & 1:
                    cause[i] |= base[z]
        for i, a in enumerate(sc):  # Fence-SC
            for b in sc[i + 1 :]:
                if self.strong_pairs[a][b] and cause[b] >> a & 1:
                    return None
        return cause

    def _is_consistent(self, cause: list[int], total: list[int]) -> bool:
        # Coherence
        for a in self.writes:
            for b in self.writes:
                if total[b.idx] >> a.idx & 1 and cause[a.idx] >> b.idx & 1:
                    return False
        co = [0] * len(total)
        for a in self.writes:
            for b in self.writes:
                related = self.strong_pairs[a.idx][b.idx] or cause[a.idx] >> b.idx & 1
                if total[a.idx] >> b.idx & 1 and (related or a.thread < 0):
                    co[a.idx] |= 1 << b.idx
        co = _closure(co)
        from_read = [0] * len(total)
        for r in self.reads:
            for cell, source in r.sources.items():
                for w in self.writes:
                    if w is not r and cell in w.op.cells and co[source] >> w.idx & 1:
                        from_read[r.idx] |= 1 << w.idx
                    # Causality
                    if w.idx == source and cause[r.idx] >> w.idx & 1:
                        return False
                    overlaps = cell in w.op.cells
                    if overlaps and cause[w.idx] >> r.idx & 1 and co[source] >> w.idx & 1:
                        return False
            # Atomicity, of one access and of read-modify-write
            for w in self.writes:
                if w is r or not self.strong_pairs[w.idx][r.idx]:
                    continue
                sources = [s for c, s in r.sources.items() if c in w.op.cells]
                if w.idx in sources and any(co[s] >> w.idx & 1 for s in sources):
                    return False
                behind = any(co[s] >> w.idx & 1 for s in sources)
                if r.op.kind == "A" and behind and co[w.idx] >> r.idx & 1:
                    return False
        # Sequential consistency per location
        rows = [0] * len(total)
        for a, b in itertools.permutations(self.events, 2):
            if a.op.kind not in "WRA" or b.op.kind not in "WRA":
                continue
            if not set(a.op.cells) & set(b.op.cells) or not self.strong_pairs[a.idx][b.idx]:
                continue
            reads_from = b.op.kind in "RA" and a.idx in b.sources.values()
            communicates = (co[a.idx] | from_read[a.idx]) >> b.idx & 1 or reads_from
            if communicates or self.po[a.idx] >> b.idx & 1:
                rows[a.idx] |= 1 << b.idx
        return not _has_cycle(rows)

    def _outcome(self, values: dict, co: list[int]) -> frozenset[tuple[str, int]]:
        pairs = []
        for r in self.reads:
            for cell, name in zip(r.op.cells, r.op.registers, strict=True):
                pairs.append((name, values[r.idx, cell]))
        for cell in self.cells:
            mine = [w for w in self.writes if cell in w.op.cells]
            for w in mine:
                if not any(co[w.idx] >> o.idx & 1 for o in mine):
                    pairs.append((f"[{cell}]", values[-1 - w.idx, cell]))
        return frozenset(pairs)


def allows(threads: list[Thread], controlled: bool = False, **wanted: int) -> bool:
    """Can all of `wanted` hold at the end? Names are registers; mem_x is the last value of x.
    `controlled`: a store does not overtake a load that program order, or a barrier of the CTA,
    puts before it (hardware, not PTX)."""
    names = {f"[{k[4:]}]" if k.startswith("mem_") else k: v for k, v in wanted.items()}
    outcomes = Execution(threads, controlled).outcomes()
    assert outcomes, "no consistent execution at all"
    return any(set(names.items()) <= outcome for outcome in outcomes)
