"""The pace of a run by its logs, as a row of the head."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from ddoctor.analysis.describe import figure
from ddoctor.analysis.pace import slowdowns
from ddoctor.evidence.printed_pace import PrintedPace
from ddoctor.evidence.section import Evidence


def printed(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Yield the row of the series that became slower most, or of the longest."""
    for pace in evidence.all(PrintedPace):
        found = max(slowdowns(pace), key=lambda one: one.factor, default=None)
        series = max(pace.series, key=lambda one: len(one.values))
        if found is not None:
            text = f"{figure(found.before)}, from {found.place} on {figure(found.after)}"
            series = found.series
        else:
            text = f"{figure(median(series.values))} in the median of {len(series.values)} lines"
        who = f" of rank {series.rank}" if series.rank is not None else ""
        yield "pace", f"{series.figure}{who}: {text}"
