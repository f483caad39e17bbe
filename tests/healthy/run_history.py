"""A sound run that is followed to its end: steps of one length, but for a longer beginning."""

from __future__ import annotations

from ddoctor.evidence.run_history import RankHistory, RunHistory, Stretch
from tests.healthy.host import HOST
from tests.healthy.probes import PLACES

STEPS, SECONDS = 100, 0.2
"""Of a stretch, and of a step."""


def stretch(number: int) -> Stretch:
    seconds = SECONDS * (2 if number == 0 else 1) + 0.001 * (number * 7 % 5)
    return Stretch(
        first=STEPS * number,
        last=STEPS * (number + 1) - 1,
        begin=10.0 + STEPS * SECONDS * number,
        seconds=STEPS * seconds,
        fastest=0.95 * seconds,
        median=seconds,
        slowest=1.2 * seconds,
        phases={
            "loader": 0.01,
            "forward": 0.3,
            "backward": 0.55,
            "optimizer": 0.05,
            "collective": 0.07,
            "rest": 0.02,
        },
        resident=6000.0,
    )


SECTIONS = (
    RunHistory(
        ranks=tuple(
            RankHistory(
                rank=place.rank,
                host=HOST,
                stretches=tuple(stretch(number) for number in range(20)),
            )
            for place in PLACES
        ),
        seconds=430.0,
    ),
)
