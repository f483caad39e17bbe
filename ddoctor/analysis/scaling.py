"""Prediction of the step time on more or fewer ranks, from recorded steps and an all-reduce sweep.

Pure: recorded steps and a sweep in, a table out.

Each rank keeps its batch (weak scaling), so its own work does not change. What changes are the
waits for other ranks and the transfers; both are predicted from the best to the worst case.
Published predictors of this kind have errors of 8 % on a node and of 15 % across nodes (vTrain,
MICRO'24, means); a trace would be more precise. The model ignores that ranks of one host share its
CPUs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
    def step(self) -> float:
        """Seconds: as recorded, or else the middle of the prediction."""
        return self.measured if self.measured is not None else (self.best + self.worst) / 2

    @property
    def steps_per_second(self) -> float:
        """Steps per second of the whole job."""
        return 1 / self.step

    @property
    def efficiency(self) -> float:
        """The share of the step in which the ranks do their own work, 0 to 1."""
        return self.alone / self.step

    @property
    def lowest_efficiency(self) -> float:
        """The efficiency in the predicted worst case."""
        return self.alone / self.worst

    @property
    def highest_efficiency(self) -> float:
        """The efficiency in the predicted best case."""
        return self.alone / self.best

    @property
    def speed_up(self) -> float:
        """The factor of samples per second, compared to one rank."""
        return self.ranks * self.efficiency


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
    local = max(1, max(_on_each_host(steps)))
    rows = []
    numbers = {here, *(2**power for power in range(ceil(log2(max(UP_TO, 4 * here))) + 1))}
    for ranks in sorted(numbers):
        transfers = [seconds for model in models for seconds in model(ranks)]
        waits = _waiting(steps, ranks)
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


class _AsSeen:
    """The recorded transfer time, scaled to another number of ranks."""

    def __init__(self, seconds: float, ranks: int) -> None:
        self._seconds, self._ranks = seconds, ranks

    def __call__(self, ranks: int) -> tuple[float, float]:
        bytes_alone = _share(ranks) / _share(self._ranks)
        latency = log2(ranks) / log2(self._ranks)
        return self._seconds * bytes_alone, self._seconds * max(bytes_alone, latency)


class _Overlapped:
    """Buckets of gradients that become ready during the backward pass, one after the other."""

    def __init__(self, backward: float, wrapper: Wrapper, sweep: AllReduce) -> None:
        self._backward = backward
        self._buckets = list(_buckets(wrapper))
        self._points = [(point.bytes, point.p50) for point in sweep.points]
        self._points.sort()
        self._ranks = len(sweep.ranks)

    def __call__(self, ranks: int) -> tuple[float, float]:
        if ranks == 1:
            return 0.0, 0.0
        tree, ring = log2(ranks) / log2(self._ranks), (ranks - 1) / (self._ranks - 1)
        low, high = sorted((tree, ring))
        return self._exposed(ranks, low), self._exposed(ranks, high, CONTENTION)

    def _exposed(self, ranks: int, latency: float, contention: float = 1.0) -> float:
        whole, ready, end = sum(self._buckets), 0.0, 0.0
        for size in self._buckets:
            ready += self._backward * size / whole
            end = max(ready, end) + contention * self._seconds(size, ranks, latency)
        return max(0.0, end - self._backward)

    def _seconds(self, size: float, ranks: int, latency: float) -> float:
        """Seconds of the sweep for this size: latency by the route, bytes by the ring."""
        together = interpolated(self._points, size)
        least = min(self._points[0][1], together)
        return least * latency + (together - least) * _share(ranks) / _share(self._ranks)


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


def _models(
    steps: Steps, wrapper: Wrapper | None, sweep: AllReduce | None
) -> Iterator[_AsSeen | _Overlapped]:
    if len(steps.ranks) > 1:
        seen = fmean(rank.total("transfer") for rank in steps.ranks) / max(1, steps.count)
        yield _AsSeen(seen, len(steps.ranks))
    if sweep is not None and wrapper is not None and wrapper.kind in ("none", "ddp"):
        backward = fmean(rank.typical("backward") for rank in steps.ranks)
        if wrapper.trainable_bytes:
            yield _Overlapped(backward, wrapper, sweep)


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


def _waiting(steps: Steps, ranks: int) -> tuple[float, float]:
    """The least and most seconds that the mean rank waits for the last one.

    The most assumes that the spread of the recorded work is random, again in each step.
    """
    here = len(steps.ranks)
    if ranks == 1 or here == 1:
        return 0.0, 0.0
    rows = [rank.local[: steps.count] for rank in steps.ranks]
    away = [own - fmean(step) for step in zip(*rows, strict=True) for own in step]
    # The mean of a few values is nearer to each of them than the true mean.
    wider = sqrt(here / (here - 1))
    ordered = sorted(wider * one for one in away)
    count = len(ordered)
    last = sum(
        one * (((place + 1) / count) ** ranks - (place / count) ** ranks)
        for place, one in enumerate(ordered)
    )
    seen = fmean(max(step) - fmean(step) for step in zip(*rows, strict=True))
    return (min(seen, last), max(seen, last)) if ranks >= here else (0.0, max(0.0, last))


def _on_each_host(steps: Steps) -> list[int]:
    hosts = [rank.place.host for rank in steps.ranks]
    return [hosts.count(host) for host in dict.fromkeys(hosts)]
