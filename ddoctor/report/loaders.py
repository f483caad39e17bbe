"""The loader alone, by its number of workers, against what the step could use."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from statistics import fmean

from ddoctor.evidence.loading import CurvePoint, Loader, LoaderCurve, Loading
from ddoctor.evidence.section import Evidence
from ddoctor.evidence.steps import Steps

KNEE = 0.9
"""Where the rate reaches this part of the best one, more workers bring little: less than the 10 %
from which on a slowdown counts (docs/decisions.md)."""


@dataclass(frozen=True, kw_only=True)
class AtWorkers:
    """A loader with one number of workers, on the rank where it is slowest."""

    num_workers: int
    rate: float
    """Batches per second."""
    start_seconds: float


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One loader over the numbers of workers that were tried."""

    name: str
    points: tuple[AtWorkers, ...]
    need: float | None
    """Batches per second that the step would take if it never waited for them; None: not seen."""
    now: int | None
    """The workers that the script asks for; None: not seen, or not the same on all ranks."""

    @property
    def knee(self) -> AtWorkers | None:
        """The fewest workers that are about as fast as any number of them; None: more might be
        faster still."""
        best = max(point.rate for point in self.points)
        found = next(point for point in self.points if point.rate >= KNEE * best)
        return found if found is not self.points[-1] else None


def curves(evidence: Evidence) -> tuple[Curve, ...]:
    """Of each loader that was run alone."""
    found: dict[str, dict[int, list[CurvePoint]]] = defaultdict(lambda: defaultdict(list))
    for section in evidence.all(LoaderCurve):
        for point in section.points:
            if point.seconds_per_batch > 0:
                found[point.name][point.num_workers].append(point)
    loaders = [loader for section in evidence.all(Loading) for loader in section.loaders]
    steps = next(iter(evidence.all(Steps)), None)
    return tuple(
        _curve(name, tried, [loader for loader in loaders if loader.name == name], steps)
        for name, tried in found.items()
    )


def _curve(
    name: str, tried: dict[int, list[CurvePoint]], loaders: list[Loader], steps: Steps | None
) -> Curve:
    slowest = {
        workers: max(points, key=lambda point: point.seconds_per_batch)
        for workers, points in sorted(tried.items())
    }
    settings = {loader.num_workers for loader in loaders}
    return Curve(
        name=name,
        points=tuple(
            AtWorkers(
                num_workers=workers,
                rate=1 / point.seconds_per_batch,
                start_seconds=max(one.start_seconds for one in tried[workers]),
            )
            for workers, point in slowest.items()
        ),
        need=_need(loaders, steps),
        now=settings.pop() if len(settings) == 1 else None,
    )


def _need(loaders: list[Loader], steps: Steps | None) -> float | None:
    """Without the loader a step lasts as long as the slowest rank's other work, and transfer."""
    if steps is None or not steps.count:
        return None
    rest = max(
        fmean(rank.local)
        + (sum(rank.by_name.get("transfer", ())) - rank.total("loader")) / len(rank.seconds)
        for rank in steps.ranks
    )
    taken = max((loader.taken for loader in loaders), default=0) / steps.count
    return taken / rest if taken and rest > 0 else None
