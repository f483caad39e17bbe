"""The page's part about a recorded training run."""

from __future__ import annotations

from dataclasses import dataclass

from ddoctor.evidence.section import Evidence
from ddoctor.report import loaders, memory, training_charts
from ddoctor.report.charts import Chart, chart
from ddoctor.report.endings import EndingRow, endings
from ddoctor.report.loaders import CurveRow
from ddoctor.report.memory import Panel
from ddoctor.report.scale import Scale, scales
from ddoctor.report.step_breakdown import Bar, StepBreakdown, step_breakdowns
from ddoctor.report.waits import WaitMatrix, wait_matrices

ALL = 32
"""Up to this many ranks, each has a bar; of more, the most telling ones."""

LATEST = 8
"""Of more ranks, this many of the slowest are among them."""

ROWS = 8
"""Up to this many ranks, each has a row in the chart of the steps; of more, the most telling."""


@dataclass(frozen=True, kw_only=True)
class RecordedTraining:
    """A recorded run as charts and figures; empty if nothing was recorded."""

    endings: tuple[EndingRow, ...]
    steps: tuple[tuple[StepBreakdown, tuple[Bar, ...], Chart], ...]
    waits: tuple[WaitMatrix, ...]
    scales: tuple[Scale, ...]
    loaders: tuple[tuple[CurveRow, Chart], ...]
    memory: tuple[Panel, ...]
    memory_chart: Chart | None


def training(evidence: Evidence) -> RecordedTraining:
    """Return all that was recorded."""
    panels = memory.panels(evidence)
    return RecordedTraining(
        endings=endings(evidence),
        steps=tuple(
            (breakdown, breakdown.shown(ALL, LATEST), _steps(f"steps {number}", breakdown))
            for number, breakdown in enumerate(step_breakdowns(evidence))
        ),
        waits=wait_matrices(evidence),
        scales=scales(evidence),
        loaders=tuple(
            (curve, _loader(f"loader {number}", curve))
            for number, curve in enumerate(loaders.curves(evidence))
        ),
        memory=panels,
        memory_chart=chart(lambda pixels: training_charts.memory("memory", panels, pixels))
        if panels
        else None,
    )


def _steps(name: str, breakdown: StepBreakdown) -> Chart:
    by_number = {rank.place.rank: rank for rank in breakdown.steps.ranks}
    ranks = [by_number[bar.rank] for bar in breakdown.shown(ROWS)]
    return chart(lambda pixels: training_charts.steps(name, breakdown, ranks, pixels[0]))


def _loader(name: str, curve: CurveRow) -> Chart:
    return chart(lambda pixels: training_charts.loader(name, curve, pixels))
