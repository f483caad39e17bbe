"""The times of its phases that a training printed, in words."""

from __future__ import annotations

from typing import Literal

from ddoctor.analysis.describe import figure
from ddoctor.evidence.printed_figures import PhaseTimes, PrintedTimes
from ddoctor.models import Observation

Phase = Literal["loader", "communication", "checkpoint"]

BATCHES = 10
"""The fewest batches of a table of totals: in fewer, what is done once counts much."""
STEPS = 3
"""The fewest printed steps: of three, the first one, which compiles, is not the median."""


def largest(times: PrintedTimes, phase: Phase, share: float, steps: int) -> PhaseTimes | None:
    """The table in which a phase has the largest share of the time, 0 to 1; None: less than that.

    Tables of fewer steps say nothing.
    """
    shares = {
        one: (getattr(one, phase) or 0.0) / one.whole
        for one in times.tables
        if one.count >= steps and one.whole
    }
    most = max(shares, key=lambda one: shares[one], default=None)
    return most if most is not None and shares[most] >= share else None


def whence(table: PhaseTimes) -> str:
    """Where it stands, and what measured it."""
    return f"{table.place}, by {table.tool}"


def part(table: PhaseTimes, seconds: float) -> str:
    """A part of the time, such as ``45 of 100 s (45%), in 500 batches``."""
    share = seconds / table.whole
    if table.in_all:
        took, of = f"{figure(seconds)} of {figure(table.whole)} s", "batches"
    else:
        took, of = f"{figure(1000 * seconds)} of {figure(1000 * table.whole)} ms", "steps"
    where = f"in {table.count}" if table.in_all else f"in the median of {table.count}"
    return f"{took} ({share:.0%}), {where} {of}"


def row(table: PhaseTimes, name: str, share: float, expected: float) -> Observation:
    """The share of a phase, 0 to 1, as evidence."""
    return Observation(
        name=name,
        value=round(100 * share),
        unit="% of the time",
        expected=round(100 * expected),
        source=table.place,
    )
