"""60 steps of a sound DDP run in bf16 on 8 H100s: overlap hides most of the communication."""

from __future__ import annotations

from collections import defaultdict
from random import Random

from ddoctor.evidence.steps import PHASES, HotLine, Lines, Phase, RankLines, RankSteps, Steps, Wait
from tests.healthy.probes import PLACES

COUNT = 60

USUAL = {
    "loader": 0.0012,
    "to-device": 0.0008,
    "forward": 0.058,
    "backward": 0.118,
    "optimizer": 0.011,
    "checkpoint": 0.0,
    "evaluation": 0.0,
    "gc": 0.0,
    "rest": 0.002,
}
TRANSFER = 0.005
"""The last bucket's, which no backward is left to hide."""

# From step to step a sound job varies by 6 % at its 90th percentile (OSDI'25); this is a calm one.
JITTER = 0.01

RANDOM = Random(20)


def _varied(seconds: float) -> float:
    return seconds * max(0.9, RANDOM.gauss(1.0, JITTER))


OWN = [
    [{phase: _varied(seconds) for phase, seconds in USUAL.items()} for _ in range(COUNT)]
    for _ in PLACES
]
"""Of each rank and step, the seconds of its own work."""

LATEST = [max(sum(rank[step].values()) for rank in OWN) for step in range(COUNT)]
TRANSFERS = [_varied(TRANSFER) for _ in range(COUNT)]


def _seconds(rank: int, phase: str) -> tuple[float, ...]:
    if phase == "transfer":
        return tuple(TRANSFERS)
    if phase == "waiting":
        return tuple(LATEST[step] - sum(OWN[rank][step].values()) for step in range(COUNT))
    return tuple(OWN[rank][step][phase] for step in range(COUNT))


def _waits() -> tuple[Wait, ...]:
    waits: dict[tuple[int, int], float] = defaultdict(float)
    for step, latest in enumerate(LATEST):
        own = [sum(rank[step].values()) for rank in OWN]
        late = own.index(latest)
        for waiter, seconds in enumerate(own):
            if waiter != late:
                waits[waiter, late] += latest - seconds
    return tuple(
        Wait(waiter=waiter, late=late, seconds=seconds)
        for (waiter, late), seconds in sorted(waits.items())
    )


def _line(phase: str, line: int, text: str, inner: str, samples: int) -> HotLine:
    return HotLine(
        phase=phase,
        file="train.py",
        line=line,
        function="main",
        text=text,
        samples=samples,
        inner=inner,
    )


SECTIONS = (
    Steps(
        warm_up=10,
        clock="cuda",
        ranks=tuple(
            RankSteps(
                place=place,
                phases=tuple(
                    Phase(name=phase, seconds=_seconds(place.rank, phase)) for phase in PHASES
                ),
                cpu=tuple(_varied(0.185) for _ in range(COUNT)),
                samples=(8,) * COUNT,
                elements=(8 * 4096,) * COUNT,
                forwards=(1,) * COUNT,
                backwards=(1,) * COUNT,
                synced_backwards=(1,) * COUNT,
            )
            for place in PLACES
        ),
        waits=_waits(),
    ),
    Lines(
        ranks=tuple(
            RankLines(
                rank=place.rank,
                samples=240,
                lines=(
                    _line("backward", 61, "loss.backward()", "autograd/graph.py:backward", 141),
                    _line("forward", 60, "loss = model(tokens, labels=tokens).loss", "", 70),
                    _line("optimizer", 62, "optimizer.step()", "optim/adamw.py:step", 13),
                    _line("rest", 66, "progress.update(1)", "", 2),
                    _line("loader", 58, "for tokens in loader:", "queues.py:get", 2),
                ),
            )
            for place in PLACES
        ),
    ),
)
