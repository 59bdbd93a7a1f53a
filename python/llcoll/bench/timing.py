"""Contenders take turns: noise and changes of the machine hit all alike."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .contenders import Contender
from .forms import Cell, Form
from .session import Session

HOPELESS = 8.0  # times the best in the first round
ALIGNING_CALLS = 2  # ranks leave a barrier at different times
MAX_SAMPLES = 500


@dataclass
class Figure:
    """One form's times at one size, us per call, each the slowest rank's."""

    in_place: bool
    wrong: int  # elements with a wrong bit over all ranks; -1: not checked
    rounds: list[float] = field(default_factory=list)
    samples: list[float] = field(default_factory=list)  # single calls; on CUDA the rounds

    @property
    def us(self) -> float:
        return statistics.median(self.rounds)

    @property
    def p50(self) -> float:
        return percentile(self.samples or self.rounds, 0.5)

    @property
    def p99(self) -> float:
        return percentile(self.samples or self.rounds, 0.99)


@dataclass
class Row:
    """One contender at one size."""

    contender: str
    is_peer: bool
    num_bytes: int
    numel: int
    figures: list[Figure]  # empty: `why`
    why: str = ""
    ran: str = ""  # the algorithm that auto stood for

    def figure(self, in_place: bool) -> Figure | None:
        return next((f for f in self.figures if f.in_place == in_place), None)

    @property
    def best(self) -> Figure | None:
        """The faster form: what a peer can do at its best."""
        return min((f for f in self.figures if f.rounds), key=lambda f: f.us, default=None)


def percentile(values: Sequence[float], share: float) -> float:
    """Of sorted values, the one at `share` (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, math.ceil(share * len(ordered)) - 1))]


def lower_bound(ratios: Sequence[float]) -> float:
    """Of the median, at 95%, by order statistics."""
    ordered = sorted(ratios)
    rank = int(len(ordered) / 2 - 1.645 * math.sqrt(len(ordered)) / 2)
    return ordered[max(rank - 1, 0)]


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values))) if values else math.nan


@dataclass
class Effort:
    iters: int = 200
    rounds: int = 11
    warmup: int = 20
    check: bool = True

    @property
    def calls_per_round(self) -> int:
        return max(1, self.iters // self.rounds)


def measure_cell(
    cell: Cell,
    contenders: Sequence[Contender],
    effort: Effort,
    advance: Callable[[], None] = lambda: None,
) -> list[Row]:
    """Checks, then times. A contender that gives a wrong result is not timed. Collective."""
    session = cell.session
    rows: list[Row] = []
    running: list[tuple[Contender, Figure, Form]] = []
    for contender in contenders:
        row = Row(contender.name, contender.is_peer, cell.num_bytes, cell.numel, [])
        rows.append(row)
        # Reasons depend on size, type and machine: alike on every rank.
        row.why = contender.why_not(cell)
        if row.why:
            continue
        if hasattr(contender, "resolved"):
            row.ran = contender.resolved(cell)
        forms = contender.forms(cell)
        wrong = session.total([form.check() if effort.check else 0 for form in forms])
        for form, bad in zip(forms, wrong, strict=True):
            figure = Figure(form.in_place, bad if effort.check else -1)
            row.figures.append(figure)
            if bad == 0:
                form.prepare()
                running.append((contender, figure, form))
    running = _first_look(session, running, effort)
    for round_idx in range(effort.rounds):
        # Another order each round, the same on every rank: nobody has one predecessor for good.
        order = random.Random(round_idx).sample(running, len(running))
        for _, figure, form in order:
            session.barrier()
            form.run(ALIGNING_CALLS)
            figure.rounds.append(form.run(effort.calls_per_round))
        advance()
    for _, figure, form in running:
        session.barrier()
        form.run(ALIGNING_CALLS)
        figure.samples = form.samples(min(effort.iters, MAX_SAMPLES))
    _agree(session, [figure for _, figure, _ in running])
    for _, _, form in running:
        form.close()
    return rows


def _first_look(
    session: Session, running: list[tuple[Contender, Figure, Form]], effort: Effort
) -> list[tuple[Contender, Figure, Form]]:
    """Warms up, and drops what is far behind; it keeps its one figure."""
    times = []
    for _, _, form in running:
        session.barrier()
        form.run(max(effort.warmup // 2, ALIGNING_CALLS))
        half = max(effort.warmup // 4, 1)
        times.append(min(form.run(half), form.run(half)))
    times = session.slowest(times)
    limit = HOPELESS * min(times, default=0.0)
    kept = []
    for us, (contender, figure, form) in zip(times, running, strict=True):
        if us <= limit or not contender.may_be_dropped:
            kept.append((contender, figure, form))
        else:
            figure.rounds.append(us)
            form.close()
    return kept


def _agree(session: Session, figures: Sequence[Figure]) -> None:
    """Round by round, call by call: a rank that comes late finds its data there and looks fast."""
    flat = [us for figure in figures for us in (*figure.rounds, *figure.samples)]
    values = iter(session.slowest(flat))
    for figure in figures:
        figure.rounds = [next(values) for _ in figure.rounds]
        figure.samples = [next(values) for _ in figure.samples]


@dataclass(frozen=True)
class Regret:
    num_bytes: int
    in_place: bool
    ratio: float  # auto over the fastest algorithm: the median over rounds of paired ratios
    best: str


def regrets(rows: Sequence[Row]) -> list[Regret]:
    """How many times slower auto was than the fastest of the other measured algorithms of one
    size, in each form."""
    own = {row.contender: row for row in rows if not row.is_peer and row.figures}
    auto = own.pop("auto", None)
    found = []
    for in_place in (False, True):
        mine = auto.figure(in_place) if auto else None
        if auto is None or mine is None or not mine.rounds:
            continue
        others = {
            name: figure.rounds
            for name, row in own.items()
            if (figure := row.figure(in_place)) is not None
            and len(figure.rounds) == len(mine.rounds)
        }
        if not others:
            continue
        best = min(others, key=lambda name: statistics.median(others[name]))
        ratio = statistics.median(a / b for a, b in zip(mine.rounds, others[best], strict=True))
        found.append(Regret(auto.num_bytes, in_place, ratio, best))
    return found
