"""The loader's rate by its number of workers, against the rate that the step could use."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddoctor.analysis.loader_throughput import LoaderThroughput
from ddoctor.evidence.loading import CurvePoint, LoaderCurve, Loading
from ddoctor.evidence.section import Evidence
from ddoctor.evidence.steps import Steps

KNEE = 0.9
"""Share of the best rate from which more workers bring little.

The rest is less than the 10 % from which on a slowdown counts (docs/decisions.md)."""


@dataclass(frozen=True, kw_only=True)
class AtWorkers:
    """A loader with one number of workers, on the rank where it is slowest."""

    num_workers: int
    rate: float
    """Batches per second."""
    start_seconds: float


@dataclass(frozen=True, kw_only=True)
class CurveRow:
    """One loader over the numbers of workers that were tried."""

    name: str
    points: tuple[AtWorkers, ...]
    need: float | None
    """Batches per second of a step that never waits for them; None: not seen."""
    now: int | None
    """The num_workers of the script; None: not seen, or different between ranks."""

    @property
    def knee(self) -> AtWorkers | None:
        """Return the fewest workers with about the best rate; None: more might be faster still."""
        best = max(point.rate for point in self.points)
        found = next(point for point in self.points if point.rate >= KNEE * best)
        return found if found is not self.points[-1] else None


def curves(evidence: Evidence) -> tuple[CurveRow, ...]:
    """Return the curve of each loader that was measured alone."""
    found: dict[str, dict[int, list[CurvePoint]]] = defaultdict(lambda: defaultdict(list))
    for section in evidence.all(LoaderCurve):
        for point in section.points:
            if point.seconds_per_batch > 0:
                found[point.name][point.num_workers].append(point)
    return tuple(_curve(name, tried, evidence) for name, tried in found.items())


def _curve(name: str, tried: Mapping[int, Sequence[CurvePoint]], evidence: Evidence) -> CurveRow:
    needs = [
        feed.need
        for steps in evidence.all(Steps)
        for loading in evidence.all(Loading)
        for feed in LoaderThroughput.derive(steps, loading).feeds
        if feed.loader.name == name and feed.need > 0
    ]
    settings = {
        loader.num_workers
        for loading in evidence.all(Loading)
        for loader in loading.loaders
        if loader.name == name
    }
    return CurveRow(
        name=name,
        points=tuple(
            AtWorkers(
                num_workers=workers,
                rate=1 / max(point.seconds_per_batch for point in points),
                start_seconds=max(point.start_seconds for point in points),
            )
            for workers, points in sorted(tried.items())
        ),
        need=1 / min(needs) if needs else None,
        now=settings.pop() if len(settings) == 1 else None,
    )
