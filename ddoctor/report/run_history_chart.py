"""The charts of a whole run over time: seconds of a step, uneven ranks, memory."""

from __future__ import annotations

from itertools import groupby
from statistics import median
from typing import TYPE_CHECKING

from ddoctor.evidence.run_history import RunHistory
from ddoctor.report.charts import COLOURS, drawn, dress
from ddoctor.report.run_history import HOUR, UNEVEN, Uneven
from ddoctor.report.step_breakdown import unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HIGHEST = 4.0
"""Times the median step; what is above is cut off, or all else would be flat."""
MINUTE = 60.0
DEPTHS = (UNEVEN, 1.3, 1.6, 2.0)
"""Multiples of the middle rank's time from which a stretch is drawn deeper."""
MOST_NAMES = 16
"""Rows of a rank that have its number."""


def pace(history: RunHistory, pixels: tuple[int, int]) -> str:
    """Draw the median step of rank 0 over time, from the fastest step to the 99th percentile."""
    stretches = next(rank.stretches for rank in history.ranks if rank.stretches)
    scale = unit(median(one.median for one in stretches))
    whole = stretches[-1].begin + stretches[-1].seconds
    name, each = _clock(whole)
    edges = [*(one.begin / each for one in stretches), whole / each]

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        low, middle, high = (
            [scale.per_second * value for value in (*values, values[-1])]
            for values in (
                [one.fastest for one in stretches],
                [one.median for one in stretches],
                [one.slowest for one in stretches],
            )
        )
        axes.fill_between(edges, low, high, step="post", color=COLOURS["bar"], linewidth=0)
        axes.step(edges, middle, where="post", color=COLOURS["accent"], linewidth=2)
        for event in history.events:
            if event.event in ("slower", "hung"):
                axes.axvline(event.seconds / each, color=COLOURS["expected"], linewidth=2)
        axes.set_xlim(edges[0], edges[-1])
        axes.set_ylim(0, min(max(high), HIGHEST * median(middle)) * 1.05)
        dress(axes, f"{scale.name} a step")
        _over_time(axes, name, pixels)

    return drawn("whole-run", pixels, draw)


def slow_ranks(found: Uneven, pixels: tuple[int, int]) -> str:
    """Draw a row for each rank, deeper where it needed longer for its own work."""
    name, each = _clock(found.edges[-1])
    edges = [edge / each for edge in found.edges]

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        for row, shares in enumerate(found.shares):
            # Neighbours of one depth are one bar, which has no seams.
            depths = [sum(share >= least for least in DEPTHS) / len(DEPTHS) for share in shares]
            for depth, places in groupby(range(len(depths)), depths.__getitem__):
                first, *_, last = [*places] * 2
                width = edges[last + 1] - edges[first]
                axes.barh(row, width, 0.9, edges[first], color=COLOURS["accent"], alpha=depth)
        axes.set_xlim(edges[0], edges[-1])
        axes.set_ylim(len(found.ranks) - 0.4, -0.6)
        dress(axes, "rank")
        every = -(-len(found.ranks) // MOST_NAMES)
        names = [str(rank) for rank in found.ranks[::every]]
        axes.set_yticks(range(0, len(found.ranks), every), names)
        _over_time(axes, name, pixels)

    return drawn("slow-ranks", pixels, draw)


def memory(history: RunHistory, pixels: tuple[int, int]) -> str:
    """Draw the memory of the ranks' processes: the middle one, from the least to the most."""
    known = [rank.stretches for rank in history.ranks if rank.stretches]
    name, each = _clock(max(rows[-1].begin + rows[-1].seconds for rows in known))
    # Of ranks with fewer stretches, the last ones have no neighbour.
    columns = list(zip(*known, strict=False))

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        times = [(column[0].begin + column[0].seconds) / each for column in columns]
        held = [sorted(one.resident / 1024 for one in column) for column in columns]
        low, high = [row[0] for row in held], [row[-1] for row in held]
        axes.fill_between(times, low, high, color=COLOURS["bar"], linewidth=0)
        axes.plot(times, [median(row) for row in held], color=COLOURS["accent"], linewidth=2)
        axes.margins(x=0)
        axes.set_ylim(bottom=0)
        dress(axes, "GiB of a rank's process")
        _over_time(axes, name, pixels)

    return drawn("memory-over-time", pixels, draw)


def _clock(seconds: float) -> tuple[str, float]:
    """Return the unit of a time axis, and its seconds."""
    if seconds < 2 * MINUTE:
        return "seconds", 1.0
    return ("hours", HOUR) if seconds > 2 * HOUR else ("minutes", MINUTE)


def _over_time(axes: Axes, name: str, pixels: tuple[int, int]) -> None:
    axes.locator_params(axis="x", nbins=8 if pixels[0] > 400 else 5)
    axes.set_xlabel(name, color=COLOURS["muted"])
