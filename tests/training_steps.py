"""Recorded steps made by hand: what each rank works, and from that how long the others wait."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from ddoctor.evidence.frames import Origin
from ddoctor.evidence.probes import RankPlace
from ddoctor.evidence.steps import PHASES, HotLine, Lines, Phase, RankLines, RankSteps, Steps

COUNT = 30

Work = Mapping[str, float | Sequence[float]]
"""Of one rank: seconds of its own phases, of every step or of each."""

USUAL: Work = {
    "loader": 0.001,
    "forward": 0.030,
    "backward": 0.060,
    "optimizer": 0.008,
    "rest": 0.001,
}


def with_more(phase: str, seconds: float | Sequence[float], work: Work = USUAL) -> Work:
    """The same work with so much more of one phase."""
    usual = work.get(phase, 0.0)
    assert isinstance(usual, float)
    if isinstance(seconds, float | int):
        return {**work, phase: usual + seconds}
    return {**work, phase: [usual + one for one in seconds]}


def every(number: int, seconds: float, count: int = COUNT) -> list[float]:
    """So many seconds in every so many steps, none in the others."""
    return [seconds if step % number == number - 1 else 0.0 for step in range(count)]


def steps(
    *ranks: Work,
    transfer: float = 0.005,
    noise: float = 0.0,
    count: int = COUNT,
    device: str = "cpu",
    ranks_per_host: int = 8,
    together: bool = True,
    cpu: Sequence[float | Sequence[float]] = (),
    elements: Sequence[Sequence[int]] = (),
    samples: Sequence[Sequence[int]] = (),
) -> Steps:
    """Steps of these ranks, which wait for each other where they work together.

    ``noise`` is the deviation of each phase from step to step. ``cpu`` are, of each rank, the
    seconds on a CPU of every step or of each.
    """
    random = Random(7)
    own = [
        {
            phase: [max(0.0, random.gauss(1.0, noise)) * second for second in _each(seconds, count)]
            for phase, seconds in work.items()
        }
        for work in ranks
    ]
    local = [[sum(step) for step in zip(*phases.values(), strict=True)] for phases in own]
    last = [max(step) for step in zip(*local, strict=True)]
    recorded = []
    for rank, phases in enumerate(own):
        waiting = [
            end - mine if together else 0.0 for end, mine in zip(last, local[rank], strict=True)
        ]
        seconds = {**phases, "waiting": waiting, "transfer": [transfer] * count}
        recorded.append(
            RankSteps(
                place=RankPlace(
                    rank=rank,
                    host=f"node-{rank // ranks_per_host}",
                    device="cpu" if device == "cpu" else f"cuda:{rank % ranks_per_host}",
                ),
                phases=tuple(
                    Phase(name=phase, seconds=tuple(seconds[phase]))
                    for phase in PHASES
                    if phase in seconds
                ),
                cpu=tuple(_each(cpu[rank], count)) if cpu else (),
                elements=tuple(elements[rank]) if elements else (),
                samples=tuple(samples[rank]) if samples else (),
            )
        )
    return Steps(ranks=tuple(recorded), warm_up=10, clock="host" if device == "cpu" else "cuda")


def origin(line: int, *, gives: bool = False) -> Origin:
    """A line of what ``lines`` shows."""
    return Origin(file="train.py", function="main", line=line, end=line, gives=gives)


def lines(*ranks: Mapping[tuple[str, int, str], int], origins: Sequence[Origin] = ()) -> Lines:
    """What each rank was met at: looks, by phase, line number and text.

    ``origins``: what makes the batches of the model.
    """
    return Lines(
        ranks=tuple(
            RankLines(
                rank=rank,
                samples=sum(met.values()),
                lines=tuple(
                    HotLine(
                        phase=phase,
                        file="train.py",
                        line=line,
                        function="main",
                        text=text,
                        samples=looks,
                        origins=tuple(origins) if phase == "forward" else (),
                    )
                    for (phase, line, text), looks in met.items()
                ),
            )
            for rank, met in enumerate(ranks)
        )
    )


def _each(seconds: float | Sequence[float], count: int) -> Sequence[float]:
    return [seconds] * count if isinstance(seconds, float | int) else seconds
