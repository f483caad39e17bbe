"""Memory while training: it fills in the first steps; after that it comes and goes."""

from __future__ import annotations

from ddoctor.evidence.steps import Growth, MemoryOverTime
from tests.healthy.host import HOST
from tests.healthy.probes import PLACES
from tests.healthy.training import SECONDS, STEPS

LOOKS = range(0, STEPS + 1, 2)
"""The steps after which it was looked at."""


def _swing(look: int, rank: int) -> int:
    """What comes and goes, from 0 to 10, without a trend."""
    return (look * 7 + rank * 3) % 11


SECTIONS = (
    MemoryOverTime(
        ranks=tuple(
            Growth(
                rank=place.rank,
                host=HOST,
                times=tuple(SECONDS * step for step in LOOKS),
                steps=tuple(LOOKS),
                # The allocator is warm after some ten steps.
                resident=tuple(
                    3600.0 - 120.0 * 0.8**step + 0.5 * _swing(step, place.rank) for step in LOOKS
                ),
                workers=tuple(5200.0 + 6.0 * _swing(step, place.rank + 4) for step in LOOKS),
                device=tuple(41_000.0 + 0.25 * _swing(step, place.rank) for step in LOOKS),
                device_between=5_600.0,
                device_peak=60_000.0,
                device_reserved=62_400.0,
                device_total=81_079.0,
                # The loss of the last step.
                graph_tensors=1,
                graph_depth=1,
            )
            for place in PLACES
        )
    ),
)
