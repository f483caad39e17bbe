"""From which share of the time on a cost of a live run is reported, and with which severity."""

from __future__ import annotations

from math import sqrt

from ddoctor.models import Severity

# Share of the time, 0 to 1. A slowdown of 10 % counts; of what samples show, as much again may
# be noise.
TOLD, SURE = 0.1, 0.2
DEVIATIONS = 2.0


def severity(share: float) -> Severity:
    """A warning from ``SURE`` on, below it a note."""
    return Severity.WARNING if share >= SURE else Severity.NOTE


def noise(share: float, samples: int) -> float:
    """The error of a share of this number of samples, 0 to 1: two standard deviations."""
    return DEVIATIONS * sqrt(share * (1 - share) / samples) if samples else 1.0
