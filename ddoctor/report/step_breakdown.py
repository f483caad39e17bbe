"""The step of a recorded run in figures: what it is made of, rank by rank."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean, median, median_low, quantiles

from ddoctor.evidence.section import Evidence
from ddoctor.evidence.steps import PHASES, HotLine, Lines, RankSteps, Steps
from ddoctor.report.wording import Grid

TENTHS = 10
"""So many steps have a tenth at either end that can be left aside."""

LATE = 0.1
"""Of the step: what costs less is no slowdown (docs/decisions.md)."""

APART = 0.02
"""Of the step: by so much more than the mean a rank's phase has to take for it to be named. It
accuses nobody, it says whose lines are shown; what a rank costs the others is for the checks."""

LINES = 3
"""Lines that are told of a phase."""

LETTERS = {phase: "d" if phase == "to-device" else phase[0] for phase in PHASES}
"""One for each phase, where there is no room for more."""


@dataclass(frozen=True, kw_only=True)
class Unit:
    """In what times are told; the same for all that are to be compared."""

    name: str
    per_second: float
    digits: int

    def figure(self, seconds: float) -> str:
        """Without the unit's name."""
        told = seconds * self.per_second
        least = 10**-self.digits
        return f"<{least:g}" if 0 < told < least / 2 else f"{told:.{self.digits}f}"

    def __call__(self, seconds: float) -> str:
        return f"{self.figure(seconds)} {self.name}"


def unit(seconds: float) -> Unit:
    """For times of which the largest are about this one."""
    name, per_second = ("s", 1.0) if seconds >= 1 else ("ms", 1e3)
    return Unit(name=name, per_second=per_second, digits=1 if seconds * per_second >= 20 else 2)


@dataclass(frozen=True, kw_only=True)
class Slice:
    """One phase: its mean over the judged steps."""

    phase: str
    seconds: float
    share: float
    """Of the step, 0 to 1."""


@dataclass(frozen=True, kw_only=True)
class Bar:
    """The mean step of one rank. Means, as they alone add up to the step."""

    rank: int
    host: str
    seconds: float
    own: float
    """Seconds of the rank's own work."""
    waiting: float | None
    """Seconds in which it waited for others; None: not seen."""
    slices: tuple[Slice, ...]
    """In the order of PHASES."""
    words: tuple[str, ...] = ()
    """What makes it worth showing among many."""

    def of(self, phase: str) -> float:
        """Seconds of a phase."""
        return next((one.seconds for one in self.slices if one.phase == phase), 0.0)


@dataclass(frozen=True, kw_only=True)
class SampledLine:
    """A line of the user's code that a phase was met at."""

    line: HotLine
    rank: int | None
    """Of the rank that spends more time in the phase than the others; None: there is none."""

    @property
    def place(self) -> str:
        """Say ``train.py:43``."""
        return f"{self.line.file.rpartition('/')[2]}:{self.line.line}"

    def __str__(self) -> str:
        on = "" if self.rank is None else f"rank {self.rank}: "
        return f"{on}{self.place} {self.line.text}".rstrip()


@dataclass(frozen=True, kw_only=True)
class StepBreakdown:
    """The step of all ranks."""

    steps: Steps
    lines: Lines | None = None

    @cached_property
    def unit(self) -> Unit:
        return unit(self.steps.step)

    @cached_property
    def bars(self) -> tuple[Bar, ...]:
        """One of each rank, in the order of their numbers."""
        seen = any("waiting" in rank.by_name for rank in self.steps.ranks)
        bars = (_bar(rank, waits=seen) for rank in self.steps.ranks)
        return tuple(sorted(bars, key=lambda bar: bar.rank))

    @cached_property
    def slices(self) -> tuple[Slice, ...]:
        """The phases that take any time, with their means over all ranks."""
        seconds = {
            phase: fmean(_mean(rank, phase) for rank in self.steps.ranks) for phase in PHASES
        }
        whole = sum(seconds.values())
        return tuple(
            Slice(phase=phase, seconds=mean, share=mean / whole)
            for phase, mean in seconds.items()
            if mean > 0
        )

    @cached_property
    def whole(self) -> tuple[float, ...]:
        """Seconds of each step, the mean over the ranks."""
        every = [rank.seconds for rank in self.steps.ranks]
        return tuple(map(fmean, zip(*(one[: self.steps.count] for one in every), strict=True)))

    @cached_property
    def spread(self) -> tuple[float, float]:
        """What 8 of 10 steps lie within; of few steps, all of them."""
        if len(self.whole) < TENTHS:
            return min(self.whole), max(self.whole)
        tenths = quantiles(self.whole, n=10, method="inclusive")
        return tenths[0], tenths[-1]

    @cached_property
    def several_hosts(self) -> bool:
        return len({bar.host for bar in self.bars}) > 1

    @cached_property
    def samples(self) -> float | None:
        """Samples that all ranks together take in a second; None: not seen on every rank."""
        ranks = self.steps.ranks
        if not all(rank.samples for rank in ranks):
            return None
        return sum(sum(rank.samples) / sum(rank.seconds) for rank in ranks)

    def shown(self, room: int, most: int = 1) -> tuple[Bar, ...]:
        """All ranks where there is room for them, else the most telling ones."""
        return self.bars if len(self.bars) <= room else self.telling(most)

    def telling(self, most: int = 1) -> tuple[Bar, ...]:
        """The median rank, the one that waits least, and the latest, those with most own work: so
        many at most, but beside the first only those that are notably late."""
        own, middle = median_low((bar.own, bar.rank) for bar in self.bars)
        late = own + LATE * self.steps.step
        words: dict[int, list[str]] = {}
        for place, bar in enumerate(sorted(self.bars, key=lambda bar: -bar.own)[:most]):
            if place == 0 or bar.own >= late:
                words[bar.rank] = ["late" if place else "latest"]
        seen = [(bar.waiting, bar.rank) for bar in self.bars if bar.waiting is not None]
        if seen:
            words.setdefault(min(seen)[1], []).append("waits least")
        words.setdefault(middle, []).append("median")
        return tuple(
            replace(bar, words=tuple(words[bar.rank])) for bar in self.bars if bar.rank in words
        )

    def summary(self) -> str:
        """All ranks in one sentence, for where not every one is shown."""
        last = max(self.bars, key=lambda bar: bar.own)
        first = min(bar.own for bar in self.bars)
        usual = median(bar.own for bar in self.bars)
        figure, name = self.unit.figure, self.name
        text = (
            f"work of their own on {len(self.bars)} ranks: {figure(first)} to "
            f"{self.unit(last.own)}, median {figure(usual)}, most on {name(last)}"
        )
        waits = [(bar.waiting, bar) for bar in self.bars if bar.waiting is not None]
        if waits:
            least, busiest = min(waits, key=lambda wait: wait[0])
            most = max(wait for wait, _ in waits)
            text += f"; waiting: {figure(least)} to {self.unit(most)}, least on {name(busiest)}"
        return text

    def table(self, bars: Sequence[Bar]) -> Grid:
        """The phases of these ranks, and their step."""
        figure, phases = self.unit.figure, [one.phase for one in self.slices]
        return Grid(
            head=(self.unit.name, *phases, "step"),
            rows=tuple(
                (
                    ", ".join((self.name(bar), *bar.words)),
                    *(figure(bar.of(phase)) for phase in phases),
                    figure(bar.seconds),
                )
                for bar in bars
            ),
        )

    def name(self, bar: Bar) -> str:
        """A rank, with its host where there are several."""
        return f"rank {bar.rank} ({bar.host})" if self.several_hosts else f"rank {bar.rank}"

    def sampled_at(self, phase: str) -> tuple[SampledLine, ...]:
        """The user's lines at which a phase was met on the rank on which it takes longest."""
        if self.lines is None:
            return ()
        rank = max(self.steps.ranks, key=lambda one: _mean(one, phase))
        usual = fmean(_mean(one, phase) for one in self.steps.ranks)
        more = _mean(rank, phase) - usual > APART * self.steps.step
        number = rank.place.rank
        # A line is met once more where it had called into another place of a library.
        found: dict[tuple[str, int], HotLine] = {}
        for line in self.lines.of(number, phase):
            found.setdefault((line.file, line.line), line)
        return tuple(
            SampledLine(line=line, rank=number if more else None)
            for line in tuple(found.values())[:LINES]
        )


def step_breakdowns(evidence: Evidence) -> tuple[StepBreakdown, ...]:
    """Of every recorded run that judged a step."""
    lines = evidence.all(Lines)
    return tuple(
        StepBreakdown(steps=steps, lines=lines[0] if lines else None)
        for steps in evidence.all(Steps)
        if steps.count and steps.step > 0
    )


def binned(values: Sequence[float], most: int) -> tuple[float, ...]:
    """Means over equal runs of values, so that there are at most so many."""
    size = -(-len(values) // most)
    return tuple(fmean(values[at : at + size]) for at in range(0, len(values), size))


def percent(share: float) -> str:
    """A share of the step as a whole number; what is there is never told as nothing."""
    return f"{share * 100:.0f} %" if share >= 0.005 else "<1 %"


def _bar(rank: RankSteps, *, waits: bool) -> Bar:
    """Where waiting was seen at all, a rank without any never had to."""
    means = {phase: _mean(rank, phase) for phase in PHASES}
    whole = sum(means.values())
    return Bar(
        rank=rank.place.rank,
        host=rank.place.host,
        seconds=whole,
        own=_total(rank.local),
        waiting=means["waiting"] if waits else None,
        slices=tuple(
            Slice(phase=phase, seconds=seconds, share=seconds / whole if whole else 0.0)
            for phase, seconds in means.items()
            if seconds > 0
        ),
    )


def _mean(rank: RankSteps, phase: str) -> float:
    return _total(rank.by_name.get(phase, ()))


def _total(seconds: Iterable[float]) -> float:
    values = tuple(seconds)
    return fmean(values) if values else 0.0
