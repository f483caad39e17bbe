"""Work of the training loop itself in a recorded run, outside the model, which all ranks do."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, median_low

from msgspec.structs import replace

from ddoctor.analysis import loop_lines, loop_work, stretches
from ddoctor.analysis.derived import Derived
from ddoctor.analysis.loop_work import COLLECTION, FORWARD, REST, LoopLine, Place
from ddoctor.analysis.stragglers import ENOUGH_STEPS
from ddoctor.evidence.live import Activity
from ddoctor.evidence.probes import RankPlace
from ddoctor.evidence.steps import HotLine, Lines, RankSteps, Steps

FEWEST = 5
"""Samples in hooks of modules that show more than chance."""
CHANCE = 2.0
"""Standard deviations of a number of samples, which is about its square root (Poisson)."""
OF_THE_STEP = (FORWARD, "backward", "optimizer")


@dataclass(frozen=True, kw_only=True)
class RankLoop:
    """Such work of one rank."""

    place: RankPlace
    seconds: Mapping[Place, float]
    """Seconds per step that last over the run, by the place of the work."""
    lines: Mapping[Place, Counter[LoopLine]]
    """The samples of its lines."""


@dataclass(frozen=True, kw_only=True)
class StepLoop(Derived):
    """What all ranks do in their loops outside the model."""

    step: float
    """Mean seconds of a step."""
    ranks: Sequence[RankLoop]
    """Empty: too few steps to judge."""

    @classmethod
    def derive(cls, steps: Steps, lines: Lines) -> StepLoop:
        """Divide the time outside of all other phases by its sampled lines."""
        judged = steps.ranks if steps.count >= ENOUGH_STEPS else ()
        return cls(step=steps.step, ranks=[_of_rank(rank, lines) for rank in judged])

    def seconds(self, *places: Place) -> float:
        """Seconds per step of the rank with the least such work.

        Where the ranks differ in its samples by chance alone, each is taken to have the mean.
        """
        each = [sum(rank.seconds.get(one, 0.0) for one in places) for rank in self.ranks]
        met = [_samples(rank, places) for rank in self.ranks]
        usual = fmean(met) if met else 0.0
        if 0 < usual - CHANCE * sqrt(usual) <= min(met):
            each = [usual / samples * one for one, samples in zip(each, met, strict=True)]
        return min(each, default=0.0)

    def lines(self, *places: Place, rank: int | None = None) -> list[LoopLine]:
        """The lines with such work on any rank, or on this one, the most frequent first."""
        met: Counter[LoopLine] = Counter()
        for one in self.ranks:
            for place in places if rank in (None, one.place.rank) else ():
                met += one.lines.get(place, Counter())
        return [line for line, _ in met.most_common()]

    def longer(self, rank: int, place: Place) -> float:
        """Seconds per step of one rank with such work, less those of the usual rank."""
        each = {one.place.rank: one.seconds.get(place, 0.0) for one in self.ranks}
        mine = each.pop(rank, 0.0)
        return mine - median_low(each.values()) if each else 0.0


def _samples(rank: RankLoop, places: Sequence[Place]) -> int:
    return sum(rank.lines[one].total() for one in places if one in rank.lines)


def _of_rank(rank: RankSteps, lines: Lines) -> RankLoop:
    mine = lines.of(rank.place.rank, *OF_THE_STEP)
    steps = [_activity(line) for line in mine]
    evaluating = lines.of(rank.place.rank, loop_work.EVALUATION)
    models = loop_work.calling_models([*steps, *map(_activity, evaluating)])
    seconds: dict[Place, float] = defaultdict(float)
    met: dict[Place, Counter[LoopLine]] = {}
    makes = loop_lines.makes_garbage(lines, rank.place.rank)
    for phase in (REST, COLLECTION):
        rows = lines.of(rank.place.rank, phase)
        whole = sum(row.samples for row in rows)
        computing = loop_lines.of_models(rows)
        apart = loop_work.apart(map(_activity, rows), steps)
        spent = stretches.lasting(stretches.means(rank.spent(phase)))
        for row in rows:
            if (row.file, row.line) in computing:
                seconds[Place.MODEL] += spent * row.samples / whole
                met.setdefault(Place.MODEL, Counter())[LoopLine(row.frame)] += row.samples
                continue
            own = (row.file, row.line) == makes
            asked = loop_lines.asks_to_collect(row)
            if phase == COLLECTION and not (own or asked):
                # Python collects by itself, wherever it is.
                continue
            activity = _activity(row)
            if own:
                activity = replace(activity, name=REST)
            place, line = (
                (Place.HOOK, _hook(row))
                if row.hook
                else loop_work.told(activity, steps, row.after, apart, models)
            )
            # What a library calls stands in none of the lines that lead there.
            if place in (Place.WITHIN, Place.UNKNOWN) and loop_work.is_callback(row.frame):
                place, line = Place.LATER, LoopLine(row.frame, loop_lines.IN_A_CALLBACK)
            seconds[place] += spent * row.samples / whole
            met.setdefault(place, Counter())[line] += row.samples
    hooks = [one for one in mine if one.hook]
    samples = sum(one.samples for one in hooks)
    if samples >= FEWEST:
        taken = next(one.samples for one in lines.ranks if one.rank == rank.place.rank)
        seconds[Place.HOOK] += fmean(rank.seconds) * samples / taken
        for row in hooks:
            met.setdefault(Place.HOOK, Counter())[_hook(row)] += row.samples
    return RankLoop(place=rank.place, seconds=seconds, lines=met)


def _hook(row: HotLine) -> LoopLine:
    return LoopLine(row.frame, loop_lines.IN_A_HOOK)


def _activity(line: HotLine) -> Activity:
    calls = line.calls or (line.frame,)
    return Activity(
        name=line.phase,
        samples=line.samples,
        calls=calls,
        within=line.within,
        origins=line.origins,
        makes=loop_lines.COLLECTS if loop_lines.asks_to_collect(line) else "",
    )
