"""The paper's picture (figure 11): latency against size, the winner shaded, the bound dashed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .report import short_size
from .timing import Row

SHADES = {"one_shot": "#d5efcf", "two_shot": "#9ccf9f", "two_shot_ll128": "#b9c8dc"}
PEER_SHADE = "#eeeeee"


def pyplot() -> Any:
    """matplotlib without a display. Raises SystemExit with a hint where it is not installed."""
    try:
        import matplotlib
    except ImportError:
        raise SystemExit("a picture needs matplotlib: pip install matplotlib") from None
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def family(algorithm: str) -> str:
    if algorithm == "two_shot_ll128":
        return algorithm
    return algorithm[:8] if algorithm.startswith(("one_shot", "two_shot")) else ""


def save(figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130, bbox_inches="tight")
    pyplot().close(figure)


def winners(rows: Sequence[Row]) -> list[tuple[int, Row]]:
    """Size by size, the fastest row. Where auto is it, so is the algorithm that it stood for."""
    found = []
    for num_bytes in sorted({row.num_bytes for row in rows}):
        here = [row for row in rows if row.num_bytes == num_bytes and row.best is not None]
        if here:
            found.append((num_bytes, min(here, key=lambda row: row.best.us)))  # type: ignore[union-attr]
    return found


def draw_latency(axes: Any, rows: Sequence[Row], bound_us: float | None) -> None:
    names = list(dict.fromkeys(row.contender for row in rows))
    for name in names:
        own = [row for row in rows if row.contender == name and row.best is not None]
        if not own:
            continue
        x = [row.num_bytes for row in own]
        y = [row.best.us for row in own]  # type: ignore[union-attr]
        is_peer = own[0].is_peer
        axes.plot(x, y, "--s" if is_peer else "-o", markersize=3, linewidth=1.2, label=name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    won = winners(rows)
    sizes = [num_bytes for num_bytes, _ in won]
    middles = [(a * b) ** 0.5 for a, b in zip(sizes, sizes[1:], strict=False)]
    edges = [sizes[0] / 2**0.5, *middles, sizes[-1] * 2**0.5] if sizes else []
    for (_, row), left, right in zip(won, edges, edges[1:], strict=False):
        kind = family(row.ran or row.contender)
        shade = PEER_SHADE if row.is_peer else SHADES.get(kind, PEER_SHADE)
        axes.axvspan(left, right, color=shade, alpha=0.6, linewidth=0)
    if bound_us:
        axes.axhline(bound_us, color="black", linestyle="--", linewidth=1)
        axes.annotate(
            f"speed of light {bound_us:.3g} us",
            (1, bound_us),
            xycoords=("axes fraction", "data"),
            ha="right",
            va="bottom",
            fontsize=7,
        )
    ticks = [num_bytes for num_bytes, _ in won][:: max(1, len(won) // 10)]
    axes.set_xticks(ticks, [short_size(num_bytes) for num_bytes in ticks], rotation=45, fontsize=7)
    axes.set_xlabel("message")
    axes.set_ylabel("us per all-reduce (median)")
    axes.grid(True, which="major", alpha=0.3)


def plot_rows(path: Path, rows: Sequence[Row], title: str, bound_us: float | None) -> None:
    """Green shades: llcoll's one-shot, two-shot, LL128 is fastest; grey: a peer, or torch."""
    plt = pyplot()
    figure, axes = plt.subplots(figsize=(8, 4.8))
    draw_latency(axes, rows, bound_us)
    axes.set_title(title, fontsize=9)
    axes.legend(fontsize=7, ncol=2)
    save(figure, path)
