"""The charts of a recorded training run: steps over time, the loader alone, memory over time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from ddoctor.evidence.section import Evidence
from ddoctor.evidence.steps import PHASES, Growth, MemoryOverTime, RankSteps
from ddoctor.report.charts import COLOURS, FONT_PIXELS, NARROW, WIDE, drawn, dress
from ddoctor.report.step_breakdown import StepBreakdown, binned
from ddoctor.report.training import CurveRow

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_STEPS = 120
"""At most this many columns; of more steps, each column is the mean of several."""

HIGHEST = 3.0
"""Times the median step; longer steps are cut off, or all others would be flat."""

ROWS = 8
"""Up to this many ranks, each has a row in the chart of the steps."""

ROW, HEAD = 60, 64
"""Height in pixels of a rank's row, and of what all rows share."""

SEVERAL_ROWS = 240
"""Height in pixels that fewer ranks share, each at most twice a row."""

MARGIN = 0.05
"""Share of the amount that the axis spans at least, so that a small change looks small."""

LOOKS = 120
"""At most this many samples of the memory are drawn; of more, each is the mean of several."""


def steps(name: str, breakdown: StepBreakdown, width: int) -> str:
    """Draw the phases of each step, stacked, in a row for each rank; of many, the telling ones."""
    shown = [bar.rank for bar in breakdown.shown(ROWS)]
    by_number = {rank.place.rank: rank for rank in breakdown.steps.ranks}
    ranks = [by_number[number] for number in shown]
    unit = breakdown.unit
    count = breakdown.steps.count
    size = -(-count // MOST_STEPS)
    edges = [breakdown.steps.warm_up + at for at in (*range(0, count, size), count)]
    whole = [one * unit.per_second for rank in ranks for one in binned(rank.seconds, MOST_STEPS)]
    top = min(max(whole), HIGHEST * median(whole)) * 1.04

    def draw(figure: Figure) -> None:
        rows = figure.subplots(len(ranks), 1, sharex=True, sharey=True, squeeze=False)
        for axes, rank in zip(rows.flat, ranks, strict=True):
            _stack(axes, rank, edges, unit.per_second)
            dress(axes, unit.name if axes is rows[0, 0] else "")
            axes.set_ylabel(
                f"rank {rank.place.rank}",
                color=COLOURS["ink"],
                rotation=0,
                ha="right",
                va="center",
                labelpad=12,
            )
            axes.locator_params(axis="y", nbins=3)
            axes.set_xlim(edges[0], edges[-1])
            axes.set_ylim(0, top)
        axes.locator_params(axis="x", integer=True, nbins=8 if width == WIDE[0] else 5)
        axes.set_xlabel("step", color=COLOURS["muted"])

    row = max(ROW, min(2 * ROW, SEVERAL_ROWS // len(ranks)))
    return drawn(name, (width, HEAD + row * len(ranks)), draw)


def _stack(axes: Axes, rank: RankSteps, edges: Sequence[int], per_second: float) -> None:
    below = [0.0] * (len(edges) - 1)
    for phase in PHASES:
        seconds = rank.by_name.get(phase, ())
        if any(seconds):
            values = binned(seconds[: edges[-1] - edges[0]], MOST_STEPS)
            above = [low + per_second * more for low, more in zip(below, values, strict=True)]
            axes.fill_between(
                edges,
                [*below, below[-1]],
                [*above, above[-1]],
                step="post",
                color=COLOURS[phase],
                linewidth=0,
            )
            below = above


def loader(name: str, curve: CurveRow, pixels: tuple[int, int]) -> str:
    """Draw batches per second over the number of workers, the knee, and the step's need."""
    workers = [point.num_workers for point in curve.points]
    rates = [point.rate for point in curve.points]

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        axes.plot(workers, rates, color=COLOURS["accent"], linewidth=2, marker="o", markersize=5)
        if curve.need:
            axes.axhline(curve.need, color=COLOURS["expected"], linewidth=2, linestyle="--")
        for text, point in _marks(curve):
            axes.annotate(
                text,
                (point, rates[workers.index(point)]),
                xytext=(0, -10),
                textcoords="offset points",
                ha="center",
                va="top",
                color=COLOURS["ink"],
            )
        dress(axes, "batches/s")
        axes.set_xticks(workers)
        axes.set_xlabel("workers", color=COLOURS["muted"])
        axes.set_ylim(0, max(*rates, curve.need or 0.0) * 1.1)
        axes.margins(x=0.08)

    return drawn(name, pixels, draw)


def _marks(curve: CurveRow) -> Iterator[tuple[str, int]]:
    """Yield the labelled points: the script's num_workers, and the knee."""
    knee = curve.knee and curve.knee.num_workers
    for workers in (point.num_workers for point in curve.points):
        words = [word for word, at in (("now", curve.now), ("knee", knee)) if at == workers]
        if words:
            yield ", ".join(words), workers


KINDS: Mapping[str, Callable[[Growth], tuple[float, ...]]] = {
    "process": lambda growth: growth.resident,
    "workers": lambda growth: growth.workers,
    "GPU": lambda growth: growth.device,
}

DRAWN = 8
"""The number of drawn ranks: those whose memory grew most."""


@dataclass(frozen=True, kw_only=True)
class MemoryRow:
    """One kind of memory of one rank."""

    rank: int
    times: tuple[float, ...]
    """Seconds."""
    amounts: tuple[float, ...]
    """MiB."""

    @property
    def growth(self) -> float:
        """Return by how many MiB the last quarter is above the first."""
        quarter = -(-len(self.amounts) // 4)
        return median(self.amounts[-quarter:]) - median(self.amounts[:quarter])


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One kind of memory of all ranks."""

    kind: str
    lines: tuple[MemoryRow, ...]
    """The ranks, the one with the largest growth first."""

    @property
    def drawn(self) -> tuple[MemoryRow, ...]:
        return self.lines[:DRAWN]

    @property
    def usual(self) -> float:
        """Return MiB at the end, the median of all ranks."""
        return median(line.amounts[-1] for line in self.lines)


def panels(evidence: Evidence) -> tuple[Panel, ...]:
    """Return a panel for each kind of memory that any rank had."""
    growths = [growth for section in evidence.all(MemoryOverTime) for growth in section.ranks]
    found = []
    for kind, of in KINDS.items():
        lines = [
            MemoryRow(rank=growth.rank, times=growth.times[: len(amounts)], amounts=amounts)
            for growth in growths
            if len(amounts := of(growth)) > 1
        ]
        if any(any(line.amounts) for line in lines):
            lines.sort(key=lambda line: -line.growth)
            found.append(Panel(kind=kind, lines=tuple(lines)))
    return tuple(found)


def memory(name: str, panels: Sequence[Panel], pixels: tuple[int, int]) -> str:
    """Draw MiB over time, a panel for each kind; the rank that grew most is in front."""
    across = pixels == WIDE
    width, height = (WIDE[0], 240) if across else (NARROW[0], HEAD + 160 * len(panels))

    def draw(figure: Figure) -> None:
        shape = (1, len(panels)) if across else (len(panels), 1)
        for axes, panel in zip(figure.subplots(*shape, squeeze=False).flat, panels, strict=True):
            first, *others = panel.drawn
            for line in (*reversed(others), first):
                front = line is first
                axes.plot(
                    binned(line.times, LOOKS),
                    binned(line.amounts, LOOKS),
                    color=COLOURS["accent"] if front else COLOURS["bar"],
                    linewidth=2 if front else 1.5,
                )
            dress(axes, f"{panel.kind}, MiB")
            axes.locator_params(axis="both", nbins=4)
            axes.set_ylim(*_limits(panel.drawn))
        figure.supxlabel("seconds", color=COLOURS["muted"], fontsize=FONT_PIXELS)

    return drawn(name, (width, height), draw)


def _limits(lines: Sequence[MemoryRow]) -> tuple[float, float]:
    low = min(min(line.amounts) for line in lines)
    high = max(max(line.amounts) for line in lines)
    room = max(0.0, MARGIN * high - (high - low)) / 2 + 0.02 * (high - low)
    return max(0.0, low - room), high + room
