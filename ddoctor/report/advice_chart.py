"""The chart of a search: memory against throughput."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddoctor.evidence.plan import Plan
from ddoctor.report.advice import frontier, rate, unit
from ddoctor.report.charts import COLOURS, FONT_PIXELS, drawn, dress
from ddoctor.report.plan import GIB

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def speeds(plan: Plan, pixels: tuple[int, int]) -> str:
    """Draw the highest throughput for each amount of memory, and a dashed line at what fits."""
    found = frontier(plan)
    sizes = [one.memory / GIB for one in found]
    rates = [rate(plan, one) for one in found]
    limit = plan.device_memory / plan.doubt / GIB

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        most = max(limit, *sizes)
        steps = sorted(zip(sizes, rates, strict=True))
        axes.step(
            *zip(*steps, (most, steps[-1][1]), strict=True),
            where="post",
            color=COLOURS["bar"],
            linewidth=2,
        )
        axes.plot(sizes, rates, color=COLOURS["accent"], linestyle="", marker="o", markersize=6)
        axes.axvline(limit, color=COLOURS["expected"], linewidth=2, linestyle="--")
        for number, at in enumerate(zip(sizes, rates, strict=True), 1):
            axes.annotate(
                str(number),
                at,
                xytext=(0, FONT_PIXELS / 2),
                textcoords="offset points",
                ha="right",
                color=COLOURS["ink"],
            )
        axes.set_xlim(0, most * 1.05)
        axes.set_ylim(0, max(rates) * 1.15 or 1)
        dress(axes, unit(plan))
        axes.yaxis.set_major_formatter("{x:,.0f}")
        axes.set_xlabel("GiB on each GPU", color=COLOURS["muted"])

    return drawn("search", pixels, draw)
