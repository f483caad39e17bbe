"""SVG charts that take their colours and font from the page."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from io import StringIO
from typing import TYPE_CHECKING

from ddoctor.evidence.probes import AllReduce
from ddoctor.evidence.steps import PHASES
from ddoctor.report.wording import size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAMES = ("ink", "muted", "line", "accent", "expected", "bar", *PHASES)
COLOURS = {name: f"#0707{number:02x}" for number, name in enumerate(NAMES, start=1)}
"""A placeholder for each colour of the page, by its CSS variable."""

WIDE = (720, 300)
NARROW = (352, 280)
"""Width and height in pixels at which the chart's text is as large as the page's."""
FONT_PIXELS = 12


Points = Sequence[tuple[int, float]]
"""Message size in bytes, and bus bandwidth in GB/s."""


def drawn(name: str, pixels: tuple[int, int], draw: Callable[[Figure], None]) -> str:
    """Draw on a figure of this size and return its SVG; the name must be unique on the page."""
    # Matplotlib warns about a home that it cannot write, which no reader of a report needs.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)

    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(
            {
                "font.size": FONT_PIXELS,
                "font.sans-serif": ["DejaVu Sans"],
                "svg.fonttype": "none",
                "svg.hashsalt": f"{name} {pixels}",
                "text.color": COLOURS["ink"],
            }
        )
        width, height = pixels
        figure = Figure(figsize=(width / 72, height / 72), layout="constrained")
        figure.patch.set_visible(False)
        draw(figure)
        text = StringIO()
        FigureCanvasSVG(figure).print_svg(  # type: ignore[no-untyped-call]
            text, metadata=dict.fromkeys(("Creator", "Date", "Format", "Type"))
        )
    return _inline(text.getvalue())


def bandwidth(section: AllReduce, healthy: Points, pixels: tuple[int, int]) -> str:
    """Draw both curves in one SVG: the measured one solid, the healthy one dashed."""
    measured = sorted((point.bytes, point.bus_bandwidth) for point in section.points)

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        if healthy:
            axes.plot(
                *zip(*healthy, strict=True),
                color=COLOURS["expected"],
                linewidth=2,
                linestyle="--",
                zorder=3,
            )
        axes.plot(
            *zip(*measured, strict=True),
            color=COLOURS["accent"],
            linewidth=2,
            marker="o",
            markersize=5,
        )
        points = (*measured, *healthy)
        _sizes(axes, points, ticks=9 if pixels == WIDE else 5)
        axes.set_ylim(0, max(speed for _, speed in points) * 1.1)
        dress(axes, "GB/s")

    return drawn("bandwidth", pixels, draw)


def dress(axes: Axes, unit: str) -> None:
    """Style the axes as in all charts; the unit of the vertical axis is above it."""
    axes.locator_params(axis="y", nbins=6)
    axes.set_title(unit, loc="left", color=COLOURS["muted"], fontsize=FONT_PIXELS)
    axes.tick_params(colors=COLOURS["muted"], length=0, pad=6)
    axes.grid(axis="y", color=COLOURS["line"], linewidth=1)
    axes.set_axisbelow(True)
    axes.patch.set_visible(False)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(COLOURS["line"])


def _sizes(axes: Axes, points: Points, ticks: int) -> None:
    smallest, largest = min(points)[0], max(points)[0]
    axes.set_xscale("log", base=2)
    powers = range(smallest.bit_length() - 1, largest.bit_length())
    step = max(1, -(-len(powers) // ticks))
    shown = [2**power for power in reversed(powers[::-1][::step])]
    axes.set_xticks(shown, [size(x) for x in shown])
    axes.minorticks_off()


def _inline(svg: str) -> str:
    """Return the element alone, without ids that two charts of one page would share."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    svg = re.sub(r' (width|height)="[\d.]+pt"', "", svg, count=2)
    svg = re.sub(r"<!--.*?-->|<style.*?</style>|\n *", "", svg, flags=re.DOTALL)
    svg = re.sub(r' d="([^"]*)"', _shortened, svg)
    for name, colour in COLOURS.items():
        svg = svg.replace(colour, f"var(--{name})")
    return svg.replace("<svg ", '<svg aria-hidden="true" focusable="false" ', 1)


def _shortened(path: re.Match[str]) -> str:
    """Round to tenths of a pixel, and use one number for a line along an axis."""
    at = ("", "")
    parts = []
    for command, figures in re.findall(r"([A-Za-z])([^A-Za-z\"]*)", path[1]):
        numbers = tuple(f"{float(figure):.1f}".removesuffix(".0") for figure in figures.split())
        if command == "L" and numbers[0] == at[0]:
            parts.append(f"V{numbers[1]}")
        elif command == "L" and numbers[1] == at[1]:
            parts.append(f"H{numbers[0]}")
        else:
            parts.append(f"{command}{' '.join(numbers)}")
        at = (numbers[-2], numbers[-1]) if numbers else ("", "")
    return f' d="{"".join(parts)}"'
