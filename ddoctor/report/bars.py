"""The step of each rank as a bar of letters, one letter a phase, for a terminal or a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.cells import cell_len
from rich.text import Text

from ddoctor.report.step_breakdown import LETTERS, Slice, StepBreakdown, percent

SHORTEST = 16
"""Letters of the longest bar, however narrow the terminal is."""

COLOURS: Mapping[str, str] = {
    "loader": "black on #e0954a",
    "to-device": "black on #ecca6c",
    "forward": "black on #7db0ee",
    "backward": "black on #5b8fd6",
    "optimizer": "black on #74bdae",
    "waiting": "dim",
    "transfer": "black on #b593d8",
    "checkpoint": "black on #d07f6c",
    "evaluation": "black on #83bf73",
    "gc": "black on #e38fb2",
    "rest": "black on #a3acb6",
}
"""Waiting has no background colour: the rank does no work there."""


def lines(breakdown: StepBreakdown, width: int) -> Iterator[Text]:
    """Yield the bars, all on one scale, and the legend of their letters."""
    bars = breakdown.shown()
    labels = [f"  rank {bar.rank}" for bar in bars]
    column = max(map(len, labels)) + 2
    tails = [f" {breakdown.unit(bar.seconds)} {', '.join(bar.words)}".rstrip() for bar in bars]
    room = max(SHORTEST, width - column - 2 - max(map(len, tails)))
    longest = max(bar.seconds for bar in bars)
    for bar, label, tail in zip(bars, labels, tails, strict=True):
        drawn = letters(bar.slices, bar.seconds / longest * room)
        yield Text.assemble(label.ljust(column), ("▏", "dim"), *drawn, ("▕", "dim"), tail)
    yield from _legend(breakdown, width)


def letters(slices: Sequence[Slice], length: float) -> Iterator[tuple[str, str]]:
    """Return whole letters, split where the phases' edges fall."""
    whole = sum(one.seconds for one in slices)
    reached, drawn = 0.0, 0
    for one in slices if whole else ():
        reached += one.seconds
        edge = round(reached / whole * length)
        yield LETTERS[one.phase] * (edge - drawn), COLOURS[one.phase]
        drawn = edge


def _legend(breakdown: StepBreakdown, width: int) -> Iterator[Text]:
    slices = breakdown.slices
    names = max(len(one.phase) for one in slices)
    figures = [breakdown.unit(one.seconds) for one in slices]
    column = max(map(len, figures))
    for one, figure in zip(slices, figures, strict=True):
        line = Text.assemble(
            "  ",
            (LETTERS[one.phase], COLOURS[one.phase]),
            f" {one.phase.ljust(names)}  {figure.rjust(column)}  {percent(one.share):>4}",
        )
        met = breakdown.sampled_at(one.phase)
        room = width - line.cell_len - 2
        if met and cell_len(met[0].place) < room:
            code = Text(f"  {met[0]}", style="dim")
            code.truncate(room + 2, overflow="ellipsis")
            line.append_text(code)
        yield line
