"""What a search for the fastest configuration found, as tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ddoctor.evidence.plan import Candidate, Plan
from ddoctor.evidence.section import Evidence
from ddoctor.report.plan import NAMES, TAKEN, gib, three
from ddoctor.report.wording import Grid, counted

ESTIMATED = "~"
LEGEND = (
    "batch: samples of a micro-batch × accumulation steps; "
    f"{ESTIMATED}: estimated from steps with fewer samples"
)


def searches(evidence: Evidence) -> tuple[Plan, ...]:
    """Return the plans that a search chose."""
    return tuple(plan for plan in evidence.all(Plan) if plan.candidates)


def tables(plan: Plan, *, narrow: bool = False) -> Iterator[Grid]:
    """Yield the frontier of the recommended number of GPUs, and the best of several numbers."""
    if plan.candidates:
        yield _grid(plan, title(plan), frontier(plan), ("GPUs", *(("s/step",) if narrow else ())))
    fastest = {one.gpus: one for one in reversed(plan.candidates)}
    if len(fastest) > 1:
        best = [fastest[gpus] for gpus in sorted(fastest)]
        without = ("GiB", "s/step") if narrow else ()
        yield _grid(plan, "the fastest on each number of GPUs", best, without)


def numbered(grid: Grid) -> Grid:
    """Return the table with numbers of its rows, as in the chart."""
    rows = tuple((str(number), *row) for number, row in enumerate(grid.rows, 1))
    return replace(grid, head=("", *grid.head), rows=rows)


def title(plan: Plan) -> str:
    """Return the title of the frontier."""
    gpus = 0 if plan.advised is None else plan.advised.gpus
    return f"on {counted(gpus, 'GPU')}: the fastest, and what needs less memory for its speed"


def frontier(plan: Plan) -> Sequence[Candidate]:
    """Return the candidates on as many GPUs as the fastest one has, fastest first."""
    best = plan.advised
    return [one for one in plan.candidates if best is not None and one.gpus == best.gpus]


def rate(plan: Plan, one: Candidate) -> float:
    """Return tokens per second on all GPUs, or samples if they have no tokens."""
    return one.samples_per_second * (plan.sequence or 1)


def unit(plan: Plan) -> str:
    """Return the unit of the rate."""
    return "samples/s" if plan.sequence is None else "tokens/s"


def batch(one: Candidate) -> str:
    """Return the samples of a micro-batch, and the micro-batches of an optimizer step."""
    return f"{one.micro_batch} × {one.accumulation}"


def _grid(plan: Plan, title: str, rows: Sequence[Candidate], without: Sequence[str]) -> Grid:
    cells = [
        {name: text for name, text in _cells(plan, one).items() if name not in without}
        for one in rows
    ]
    marks = [TAKEN[0] if one == plan.advised else "" for one in rows]
    return Grid(
        title=title,
        head=(*cells[0], ""),
        rows=tuple((*row.values(), mark) for row, mark in zip(cells, marks, strict=True)),
        chosen=next((place for place, mark in enumerate(marks) if mark), None),
    )


def _cells(plan: Plan, one: Candidate) -> Mapping[str, str]:
    return {
        "GPUs": str(one.gpus),
        "strategy": NAMES[one.strategy],
        "batch": batch(one),
        "checkpointing": one.checkpointing,
        "GiB": (ESTIMATED if one.estimated else "") + gib(one.memory),
        "s/step": three(one.step.seconds),
        unit(plan): three(rate(plan, one)),
    }
