"""Equal parts of a run, which distinguish a lasting cost from a single event."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

STRETCHES = 5
"""Number of equal parts of the run; a slowdown in most of them persists."""


def means(seconds: Sequence[float], *, least: int = 1) -> list[float]:
    """The mean of each stretch, of ``least`` or more steps."""
    length = max(len(seconds) // STRETCHES, least)
    parts = [seconds[at : at + length] for at in range(0, len(seconds) - length + 1, length)]
    return [fmean(part) for part in parts or [seconds]]


def lasting(stretches: Sequence[float]) -> float:
    """The least mean, without the best stretch."""
    return sorted(stretches)[len(stretches) // STRETCHES]
