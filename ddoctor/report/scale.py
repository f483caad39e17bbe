"""The predicted step time on fewer and on more ranks, as a table."""

from __future__ import annotations

from dataclasses import dataclass

from ddoctor.analysis.scaling import Scaled, predict
from ddoctor.evidence.probes import AllReduce
from ddoctor.evidence.section import Evidence
from ddoctor.evidence.wrapping import Wrapping
from ddoctor.report.step_breakdown import Unit, step_breakdown
from ddoctor.report.wording import span

HEAD = ("ranks", "step", "steps/s", "speed-up", "efficiency", "")

AHEAD = 3
"""The line names this many larger numbers of ranks."""


@dataclass(frozen=True, kw_only=True)
class Scale:
    """The predictions from one recorded run."""

    rows: tuple[Scaled, ...]
    unit: Unit
    by_sweep: bool
    """Whether an all-reduce sweep was measured."""

    def cells(self, row: Scaled) -> tuple[str, ...]:
        """Return one row of the table under ``HEAD``, from the worst to the best case."""
        unit, best, worst = self.unit, row.best, row.worst
        if row.measured is not None:
            best = worst = row.measured
        alone, figure = row.alone, self.unit.figure
        return (
            f"{row.ranks}",
            f"{span(figure(best), figure(worst))} {unit.name}",
            span(_told(1 / worst), _told(1 / best)),
            span(_told(row.ranks * alone / worst), _told(row.ranks * alone / best)),
            f"{span(f'{100 * alone / worst:.0f}', f'{100 * alone / best:.0f}')} %",
            "recorded" if row.measured is not None else "predicted" if row.ranks > 1 else "",
        )

    def table(self) -> tuple[tuple[str, ...], ...]:
        """Return all rows of the table."""
        return tuple(map(self.cells, self.rows))

    def __str__(self) -> str:
        """Return the recorded efficiency, and the predicted one on more ranks."""
        cells = self.table()
        here = next(place for place, row in enumerate(self.rows) if row.measured is not None)
        ahead = ", ".join(f"{cell[4]} on {cell[0]}" for cell in cells[here + 1 :][:AHEAD])
        now = cells[here]
        return f"efficiency {now[4]} on {now[0]} ranks, predicted {ahead}; same batch per rank"


def scaling(evidence: Evidence) -> Scale | None:
    """Return the predictions for the recorded run; None: it did not record its transfers,
    or a profiler slowed it."""
    breakdown = step_breakdown(evidence)
    if breakdown is None or breakdown.steps.traced:
        return None
    sweep = max(evidence.all(AllReduce), key=lambda sweep: len(sweep.ranks), default=None)
    rows = predict(breakdown.steps, evidence.of_run(Wrapping), sweep)
    return Scale(rows=rows, unit=breakdown.unit, by_sweep=sweep is not None) if rows else None


def _told(value: float) -> str:
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f}"
