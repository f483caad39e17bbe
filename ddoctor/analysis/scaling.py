"""Prediction of the step time on more or fewer ranks, from recorded steps and an all-reduce sweep.

Pure: recorded steps and a sweep in, a table out.

Each rank keeps its batch (weak scaling), so its own work does not change. What changes are the
waits for other ranks and the transfers; both are predicted from the best to the worst case.
Published predictors of this kind have errors of 8 % on a node and of 15 % across nodes (vTrain,
MICRO'24, means); a trace would be more precise. The model ignores that ranks of one host share its
CPUs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import ceil, exp, log, log2, sqrt
from statistics import fmean

from ddoctor.evidence.probes import AllReduce
from ddoctor.evidence.steps import Steps
from ddoctor.evidence.wrapping import Wrapper, Wrapping

# A collective in training is about 30 % slower than the same alone (vTrain, MICRO'24).
CONTENTION = 1.3
# vTrain's error across nodes.
ACROSS_NODES = 0.15
# DDP's own defaults: bucket_cap_mb, and the first bucket, which is smaller to begin early.
BUCKET, FIRST_BUCKET = 25 * 2**20, 2**20
UP_TO = 8
"""The table covers at least this number of ranks, or four times the recorded number."""


@dataclass(frozen=True, kw_only=True)
class Scaled:
    """One row: a step on this number of ranks, each with its present batch."""

    ranks: int
    alone: float
    """Seconds of a rank's own work, which is the step on one rank."""
    best: float
    """Predicted seconds of the step in the best case."""
    worst: float
    measured: float | None = None
    """Recorded seconds of the step on this number of ranks."""

    @property
    def lowest_efficiency(self) -> float:
        """The share of the step for the ranks' own work, 0 to 1: as recorded, else at worst."""
        return self.alone / (self.measured or self.worst)

    @property
    def highest_efficiency(self) -> float:
        """The same, as recorded, else at best."""
        return self.alone / (self.measured or self.best)


def predict(
    steps: Steps, wrapping: Wrapping | None = None, sweep: AllReduce | None = None
) -> tuple[Scaled, ...]:
    """The table by number of ranks; empty: the transfers are unknown (one rank and no sweep)."""
    here = len(steps.ranks)
    usable = sweep if sweep is not None and len(sweep.ranks) > 1 and sweep.points else None
    wrapper = next(iter(wrapping.wrappers), None) if wrapping is not None else None
    models = list(_models(steps, wrapper, usable))
    if not steps.count or not models:
        return ()
    alone = fmean(fmean(rank.local) for rank in steps.ranks)
    local = max(Counter(rank.place.host for rank in steps.ranks).values())
    seen, away = _apart(steps)
    rows = []
    numbers = {here, *(2**power for power in range(ceil(log2(max(UP_TO, 4 * here))) + 1))}
    for ranks in sorted(numbers):
        transfers = [seconds for model in models for seconds in model(ranks)]
        waits = _waiting(seen, away, here, ranks)
        apart = 1 + ACROSS_NODES if ranks > local else 1.0
        rows.append(
            Scaled(
                ranks=ranks,
                alone=alone,
                best=alone + waits[0] + min(transfers),
                worst=(alone + waits[1] + max(transfers)) * apart,
                measured=steps.step if ranks == here else None,
            )
        )
    return tuple(rows)


def _models(
    steps: Steps, wrapper: Wrapper | None, sweep: AllReduce | None
) -> Iterator[Callable[[int], tuple[float, float]]]:
    """Functions from a number of ranks to the least and most seconds of exposed transfers."""
    here = len(steps.ranks)
    if here > 1:
        seen = fmean(rank.total("transfer") for rank in steps.ranks) / max(1, steps.count)
        yield partial(_as_seen, seen, here)
    if sweep is not None and wrapper is not None and wrapper.kind in ("none", "ddp"):
        backward = fmean(rank.typical("backward") for rank in steps.ranks)
        points = sorted((point.bytes, point.p50) for point in sweep.points)
        if wrapper.trainable_bytes:
            yield partial(_overlapped, backward, [*_buckets(wrapper)], points, len(sweep.ranks))


def _as_seen(seconds: float, here: int, ranks: int) -> tuple[float, float]:
    """The recorded transfer time, in proportion to the bytes, or to the latency of a tree."""
    by_bytes = _share(ranks) / _share(here)
    return seconds * by_bytes, seconds * max(by_bytes, log2(ranks) / log2(here))


def _overlapped(
    backward: float,
    buckets: Sequence[float],
    points: Sequence[tuple[float, float]],
    swept: int,
    ranks: int,
) -> tuple[float, float]:
    """Buckets that get ready in the backward pass, and are sent one by one by tree or ring."""
    if ranks == 1:
        return 0.0, 0.0
    low, high = sorted((log2(ranks) / log2(swept), (ranks - 1) / (swept - 1)))

    def exposed(latency: float, contention: float) -> float:
        whole, ready, end = sum(buckets), 0.0, 0.0
        for size in buckets:
            ready += backward * size / whole
            together = interpolated(points, size)
            least = min(points[0][1], together)
            by_bytes = (together - least) * _share(ranks) / _share(swept)
            end = max(ready, end) + contention * (least * latency + by_bytes)
        return max(0.0, end - backward)

    return exposed(low, 1.0), exposed(high, CONTENTION)


def interpolated(points: Sequence[tuple[float, float]], size: float) -> float:
    """Seconds for a size, interpolated between measured sizes on logarithmic axes.

    Below the smallest size, the time of that size; above the largest, in proportion to the bytes.
    """
    if size <= points[0][0]:
        return points[0][1]
    for (smaller, low), (larger, high) in pairwise(points):
        if size <= larger:
            part = log(size / smaller) / log(larger / smaller)
            return exp(log(low) + part * log(high / low))
    return points[-1][1] * size / points[-1][0]


def _buckets(wrapper: Wrapper) -> Iterator[float]:
    if wrapper.bucket_bytes:
        yield from wrapper.bucket_bytes
        return
    cap = wrapper.bucket_cap_mb * 2**20 if wrapper.bucket_cap_mb else BUCKET
    left = float(wrapper.trainable_bytes)
    size = min(FIRST_BUCKET, cap)
    while left > 0:
        yield min(size, left)
        left -= size
        size = cap


def _share(ranks: int) -> float:
    """The share of the bytes of an all-reduce that each rank sends in a ring, 0 to 1."""
    return (ranks - 1) / ranks


def _apart(steps: Steps) -> tuple[float, Sequence[float]]:
    """Seconds that the mean rank waited for the last one, and how far work was from its mean.

    The distances are those of all ranks in all steps, sorted.
    """
    here, count = len(steps.ranks), steps.count
    each = list(zip(*(rank.local[:count] for rank in steps.ranks), strict=True))
    means = [fmean(step) for step in each]
    seen = fmean(max(step) - mean for step, mean in zip(each, means, strict=True))
    # The mean of a few values is nearer to each of them than the true mean.
    wider = sqrt(here / max(1, here - 1))
    away = [wider * (own - mean) for step, mean in zip(each, means, strict=True) for own in step]
    return seen, sorted(away)


def _waiting(seen: float, away: Sequence[float], here: int, ranks: int) -> tuple[float, float]:
    """The least and most seconds that the mean rank waits for the last one.

    The most assumes that the spread of the recorded work is random, again in each step.
    """
    if ranks == 1 or here == 1:
        return 0.0, 0.0
    count = len(away)
    last = sum(
        one * (((place + 1) / count) ** ranks - (place / count) ** ranks)
        for place, one in enumerate(away)
    )
    return (min(seen, last), max(seen, last)) if ranks >= here else (0.0, max(0.0, last))
