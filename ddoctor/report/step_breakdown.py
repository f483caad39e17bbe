"""The step of a recorded run in figures: its phases, rank by rank."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean, median, median_low, quantiles

from ddoctor.evidence.section import Evidence
from ddoctor.evidence.steps import PHASES, HotLine, Lines, Steps
from ddoctor.report.wording import Grid

TENTHS = 10
"""From this many steps on, the spread leaves out a tenth at either end."""

LATE = 0.1
"""Share of the step; what costs less is no slowdown (docs/decisions.md)."""

APART = 0.02
"""Share of the step by which a rank's phase must exceed the mean for the rank to be named.

It says whose lines are shown; the checks judge what a rank costs the others."""

ALL = 16
"""Up to this many ranks, each is shown in a text; of more, only the most telling ones."""

BARS, LATEST = 32, 8
"""The same on the page, where this many of the slowest are among the telling ones."""

LINES = 3
"""At most this many lines of a phase are shown."""

LETTERS: dict[str, str] = {phase: "d" if phase == "to-device" else phase[0] for phase in PHASES}
"""One letter for each phase, for narrow output."""


@dataclass(frozen=True, kw_only=True)
class Unit:
    """The unit of times; the same for all times that are compared."""

    name: str
    per_second: float
    digits: int

    def figure(self, seconds: float) -> str:
        """Return the figure without the unit's name."""
        told = seconds * self.per_second
        least = 10**-self.digits
        return f"<{least:g}" if 0 < told < least / 2 else f"{told:.{self.digits}f}"

    def __call__(self, seconds: float) -> str:
        return f"{self.figure(seconds)} {self.name}"


def unit(seconds: float) -> Unit:
    """Return the unit for times of about this size."""
    name, per_second = ("s", 1.0) if seconds >= 1 else ("ms", 1e3)
    return Unit(name=name, per_second=per_second, digits=1 if seconds * per_second >= 20 else 2)


@dataclass(frozen=True, kw_only=True)
class Slice:
    """One phase: its mean time over the judged steps."""

    phase: str
    seconds: float
    share: float
    """Share of the step, 0 to 1."""


@dataclass(frozen=True, kw_only=True)
class Bar:
    """The mean step of one rank. Only means add up to the step."""

    rank: int
    host: str
    seconds: float
    own: float
    """Seconds of the rank's own work."""
    waiting: float | None
    """Seconds of waiting for other ranks; None: not seen."""
    slices: tuple[Slice, ...]
    """In the order of PHASES."""
    words: tuple[str, ...] = ()
    """Why it is shown among many, such as ``slowest``."""

    def of(self, phase: str) -> float:
        """Return the seconds of a phase."""
        return next((one.seconds for one in self.slices if one.phase == phase), 0.0)


@dataclass(frozen=True, kw_only=True)
class SampledLine:
    """A line of the user's code at which a phase was sampled."""

    line: HotLine
    rank: int | None
    """The rank that spends more time in the phase than the others; None: none does."""

    @property
    def place(self) -> str:
        """Return the place, such as ``train.py:43``."""
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
    def means(self) -> Mapping[int, Mapping[str, float]]:
        """Return the seconds of each phase by rank, in order of rank."""
        ranks = sorted(self.steps.ranks, key=lambda rank: rank.place.rank)
        return {
            rank.place.rank: {phase: _mean(rank.by_name.get(phase, ())) for phase in PHASES}
            for rank in ranks
        }

    @cached_property
    def bars(self) -> tuple[Bar, ...]:
        """Return one bar for each rank; if waiting was seen on any, none counts as 0 seconds."""
        ranks = {rank.place.rank: rank for rank in self.steps.ranks}
        waits = any("waiting" in rank.by_name for rank in self.steps.ranks)
        return tuple(
            Bar(
                rank=number,
                host=ranks[number].place.host,
                seconds=sum(means.values()),
                own=_mean(ranks[number].local),
                waiting=means["waiting"] if waits else None,
                slices=slices(means),
            )
            for number, means in self.means.items()
        )

    @cached_property
    def slices(self) -> tuple[Slice, ...]:
        """Return the phases that take any time, with their means over all ranks."""
        every = self.means.values()
        return slices({phase: fmean(means[phase] for means in every) for phase in PHASES})

    @cached_property
    def spread(self) -> tuple[float, float]:
        """Return the range of 8 of 10 steps, in seconds; of few steps, of all."""
        seconds = self.steps.seconds
        if len(seconds) < TENTHS:
            return min(seconds), max(seconds)
        tenths = quantiles(seconds, n=10, method="inclusive")
        return tenths[0], tenths[-1]

    @cached_property
    def several_hosts(self) -> bool:
        return len({bar.host for bar in self.bars}) > 1

    @cached_property
    def samples(self) -> float | None:
        """Return samples per second of all ranks together; None: not seen on every rank."""
        ranks = self.steps.ranks
        if not all(rank.samples for rank in ranks):
            return None
        return sum(sum(rank.samples) / sum(rank.seconds) for rank in ranks)

    def shown(self, room: int = ALL, most: int = 1) -> tuple[Bar, ...]:
        """Return all ranks if there is room for them, else the most telling ones."""
        return self.bars if len(self.bars) <= room else self.telling(most)

    def telling(self, most: int = 1) -> tuple[Bar, ...]:
        """Return the median rank, the rank that waits least, and the slowest ranks.

        The slowest have most own work; at most ``most`` of them, notably slow ones only after
        the first.
        """
        own, middle = median_low((bar.own, bar.rank) for bar in self.bars)
        late = own + LATE * self.steps.step
        words: dict[int, list[str]] = {}
        for place, bar in enumerate(sorted(self.bars, key=lambda bar: -bar.own)[:most]):
            if place == 0 or bar.own >= late:
                words[bar.rank] = ["slow" if place else "slowest"]
        seen = [(bar.waiting, bar.rank) for bar in self.bars if bar.waiting is not None]
        if seen:
            words.setdefault(min(seen)[1], []).append("waits least")
        words.setdefault(middle, []).append("median")
        return tuple(
            replace(bar, words=tuple(words[bar.rank])) for bar in self.bars if bar.rank in words
        )

    def summary(self) -> str:
        """Return all ranks in one sentence, for output that does not show each of them."""
        last = max(self.bars, key=lambda bar: bar.own)
        first = min(bar.own for bar in self.bars)
        usual = median(bar.own for bar in self.bars)
        figure, name = self.unit.figure, self.name
        text = (
            f"own work on {len(self.bars)} ranks: {figure(first)} to "
            f"{self.unit(last.own)}, median {figure(usual)}, most on {name(last)}"
        )
        waits = [(bar.waiting, bar) for bar in self.bars if bar.waiting is not None]
        if waits:
            least, busiest = min(waits, key=lambda wait: wait[0])
            most = max(wait for wait, _ in waits)
            text += f"; waiting: {figure(least)} to {self.unit(most)}, least on {name(busiest)}"
        return text

    def table(self, bars: Sequence[Bar]) -> Grid:
        """Return the phases of these ranks, and their step; then the mean of all ranks."""
        figure, phases = self.unit.figure, [one.phase for one in self.slices]
        return Grid(
            head=(self.unit.name, *phases, "step"),
            rows=(
                *(
                    (
                        ", ".join((self.name(bar), *bar.words)),
                        *(figure(bar.of(phase)) for phase in phases),
                        figure(bar.seconds),
                    )
                    for bar in bars
                ),
                ("mean of all ranks", *(figure(one.seconds) for one in self.slices), ""),
                ("share of the step", *(percent(one.share) for one in self.slices), ""),
            ),
        )

    def sampled(self) -> tuple[tuple[str, str], ...]:
        """Return each phase with a line at which it was sampled."""
        phases = (one.phase for one in self.slices)
        return tuple((phase, str(line)) for phase in phases for line in self.sampled_at(phase))

    def name(self, bar: Bar) -> str:
        """Return a rank's name, with its host if there are several hosts."""
        return f"rank {bar.rank} ({bar.host})" if self.several_hosts else f"rank {bar.rank}"

    def sampled_at(self, phase: str) -> tuple[SampledLine, ...]:
        """Return the user's lines of a phase, sampled on the rank on which it takes longest."""
        if self.lines is None:
            return ()
        seconds = {rank: means[phase] for rank, means in self.means.items()}
        number = max(seconds, key=lambda rank: seconds[rank])
        more = seconds[number] - fmean(seconds.values()) > APART * self.steps.step
        # A line that calls into several places of a library was sampled once for each.
        found: dict[tuple[str, int], HotLine] = {}
        for line in self.lines.of(number, phase):
            found.setdefault((line.file, line.line), line)
        return tuple(
            SampledLine(line=line, rank=number if more else None)
            for line in tuple(found.values())[:LINES]
        )


def step_breakdown(evidence: Evidence) -> StepBreakdown | None:
    """Return the breakdown of the recorded run; None: no step was judged."""
    steps = evidence.of_run(Steps)
    if steps is None or not steps.count or steps.step <= 0:
        return None
    return StepBreakdown(steps=steps, lines=evidence.of_run(Lines))


def binned(values: Sequence[float], most: int) -> tuple[float, ...]:
    """Return means over runs of equal length, at most ``most`` of them."""
    size = -(-len(values) // most)
    return tuple(fmean(values[at : at + size]) for at in range(0, len(values), size))


def percent(share: float) -> str:
    """Return a share of the step in whole per cent, ``<1 %`` if it is small."""
    return f"{share * 100:.0f} %" if share >= 0.005 else "<1 %"


def slices(seconds: Mapping[str, float]) -> tuple[Slice, ...]:
    """Return the phases that take any time, in the order of PHASES."""
    whole = sum(seconds.values())
    return tuple(
        Slice(phase=phase, seconds=seconds[phase], share=seconds[phase] / whole)
        for phase in PHASES
        if seconds.get(phase, 0.0) > 0
    )


def _mean(seconds: Iterable[float]) -> float:
    values = tuple(seconds)
    return fmean(values) if values else 0.0
