"""Divides time among what happens at the same time: at each moment, the most important counts."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple


class Span(NamedTuple):
    """Something that lasts from one moment to another; times in microseconds."""

    begin: float
    end: float
    weight: int
    """Of those at the same time, the heaviest counts; of equal weights, the first."""
    label: str | int


def divided(spans: Iterable[Span]) -> list[Span]:
    """The moments, in order and without overlap, each with the span that counts there."""
    order = sorted(spans)
    edges = sorted({edge for one in order for edge in one[:2]})
    active: dict[int, deque[Span]] = defaultdict(deque)
    found: list[Span] = []
    coming = 0
    for begin, end in pairwise(edges):
        while coming < len(order) and order[coming].begin <= begin:
            active[order[coming].weight].append(order[coming])
            coming += 1
        top = _top(active, begin)
        if top is None:
            continue
        before = found[-1] if found else None
        if before is not None and before.end == begin and before[2:] == top[2:]:
            found[-1] = before._replace(end=end)
        else:
            found.append(top._replace(begin=begin, end=end))
    return found


def _top(active: dict[int, deque[Span]], moment: float) -> Span | None:
    for weight in sorted(active, reverse=True):
        spans = active[weight]
        while spans and spans[0].end <= moment:
            spans.popleft()
        if spans:
            return spans[0]
    return None


def at(spans: Sequence[Span], moment: float) -> str | int | None:
    """The label at a moment, among spans in order and without overlap; None: there is none."""
    place = bisect_right(spans, moment, key=lambda one: one.begin) - 1
    return spans[place].label if place >= 0 and moment < spans[place].end else None


def gaps(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The times between intervals, before the first and after the last."""
    free: list[tuple[float, float]] = []
    last = float("-inf")
    for begin, end in sorted(spans):
        if begin > last:
            free.append((last, begin))
        last = max(last, end)
    return [*free, (last, float("inf"))]
