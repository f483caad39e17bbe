"""The chart of a whole run: seconds of a step over time, with what happened."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from ddoctor.evidence.run_history import RunHistory
from ddoctor.report.charts import COLOURS, drawn, dress
from ddoctor.report.step_breakdown import unit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HIGHEST = 4.0
"""Times the median step; what is above is cut off, or all else would be flat."""
HOUR, MINUTE = 3600.0, 60.0


def pace(history: RunHistory, pixels: tuple[int, int]) -> str:
    """Draw the median step of rank 0 over time, from the fastest step to the 99th percentile."""
    stretches = next(rank.stretches for rank in history.ranks if rank.stretches)
    scale = unit(median(one.median for one in stretches))
    whole = stretches[-1].begin + stretches[-1].seconds
    name, each = ("hours", HOUR) if whole > 2 * HOUR else ("minutes", MINUTE)
    if whole < 2 * MINUTE:
        name, each = "seconds", 1.0
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
        axes.locator_params(axis="x", nbins=8 if pixels[0] > 400 else 5)
        axes.set_xlabel(name, color=COLOURS["muted"])

    return drawn("whole-run", pixels, draw)
