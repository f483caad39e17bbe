"""Reads how fast a training steps, from some of the lines in which it prints that."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ddoctor.evidence.printed_pace import PaceSeries, PrintedPace
from ddoctor.reading.inputs import CARRIAGE_RETURN, LONGEST
from ddoctor.reading.prefixes import Said

FIRST_SAMPLES, SAMPLES = 512, 64
"""Lines, or bars, that are looked at in the first block of a file and in each further one. A pace
that lasts is in each part of it."""
NEW_LINES = 32
"""Unknown lines of a block in which a figure is looked for."""
MOST_POINTS = 1024
"""Of a longer series every second point is kept."""
FEWEST_POINTS = 60
MOST_SERIES = 64
MOST_LINES = 10_000
"""Lines without their digits of which it is remembered whether they have a figure."""
BEFORE = 120
"""Characters before a figure, which say of what it is."""

N = r"(?P<value>\d[\d,]{0,11}(?:\.\d{1,9})?)"
IS = r"['\"]?(?: ?[:=] ?| )"
STEP = r"(?:its?|iters?|iterations?|steps?|batch(?:es)?|ba)"
DATA = r"(?:ex|examples?|samples?|seqs?|imgs?|images?|toks?|tokens?)"
THING = rf"(?:{STEP}|{DATA})"
EACH = r"(?:[ _/](?:per[ _])?(?:gpu|device|rank))?"
UNIT = r"(?:[ _]\(?m?s(?:ec)?\)?)?"
# tqdm, nanoGPT, Megatron, torchtitan, torchtune, timm, fairseq, DeepSpeed, composer, mmengine.
RATES = (
    rf"{N} ?(?P<figure>{THING}/s(?:ec)?)\b",
    rf"(?P<figure>\b{THING}(?:/|[ _]per[ _])s(?:ec(?:ond)?)?{EACH}){IS}{N}",
    rf"(?P<figure>\b(?:tps|wps|ups|(?:Curr)?SamplesPerSec|tgs)){IS}{N}",
)
TIMES = (
    rf"{N} ?(?P<figure>m?s(?:ec)?/{STEP})\b",
    rf"(?P<figure>\bm?s(?:ec)?/{STEP}){IS}{N}",
    rf"(?P<figure>elapsed time per iteration \(m?s\)): {N}",
    rf"(?P<figure>\b(?:train_)?(?:step|iter|iteration|batch)[ _]time{UNIT}){IS}{N}",
    rf"(?P<figure>\btime[ _/](?:per[ _])?{STEP}{UNIT}){IS}{N}",
    rf"(?P<figure>\b(?:train_)?step_timing(?: in s)?){IS}{N}",
    rf"(?P<figure>\bdt){IS}{N} ?m?s\b",
    rf"(?P<figure>\btime){IS}{N}(?= ?m?s\b[^/]|  data_time)",
)


class _Form(NamedTuple):
    """How lines say a figure."""

    text: re.Pattern[str]
    per_second: bool


FORMS = tuple(
    _Form(re.compile(text, re.IGNORECASE), per_second)
    for texts, per_second in ((RATES, True), (TIMES, False))
    for text in texts
)
# Megatron's batch may grow by its --rampup-batch-size; a bar of an evaluation has another length.
SIZE = re.compile(r"global[ _]batch[ _]size: {0,9}\d{1,9}|/\d{1,12} \[")
STEPS = (
    re.compile(r"(?i)\b(?:steps?|iter|iteration)\W{1,9}(\d{1,12})\b"),
    re.compile(r"\| {0,9}(\d{1,12})/\d{1,12} \["),
)
DIGITS = re.compile(r"[\d.,+\s-]+(?:e[+-]?\d+)?")


class _Key(NamedTuple):
    """What lines of one series have in common."""

    file: str
    rank: int | None
    figure: str
    before: str
    """The text before the figure without its numbers."""
    size: str | None
    """Of the batch, or the whole length of a bar."""


@dataclass
class _Series:
    per_second: bool
    every: int = 1
    met: int = 0
    points: list[tuple[int, int | None, float]] = field(default_factory=list)

    def add(self, line: int, step: int | None, value: float) -> None:
        self.met += 1
        if self.met % self.every:
            return
        self.points.append((line, step, value))
        if len(self.points) == MOST_POINTS:
            self.points = self.points[1::2]
            self.every *= 2


class _Line(NamedTuple):
    """What lines have in common that differ in their numbers only."""

    form: _Form
    before: str
    step: re.Pattern[str] | None
    sized: bool
    """Whether they say the size of the batch, or the whole length of a bar."""


@dataclass
class Pace:
    """Collects the figures of all logs."""

    _series: dict[_Key, _Series] = field(default_factory=dict)
    _lines: dict[bytes, _Line | None] = field(default_factory=dict)
    """By a line without its digits; None: it has no figure."""
    _new: int = 0
    """Unknown lines of this block."""

    def look(
        self, lines: Sequence[bytes], first: int, file: str, said: Callable[[bytes], Said]
    ) -> None:
        """Look at some of these lines, of which ``first`` is the number of the first one."""
        if first == 1 and len(self._series) >= MOST_SERIES:
            return
        self._new = 0
        samples = FIRST_SAMPLES if first == 1 else SAMPLES
        for place in range(0, len(lines), max(1, len(lines) // samples)):
            bars = lines[place].split(CARRIAGE_RETURN)
            # A line that ends with a carriage return is no bar.
            every = max(1, len(bars) * len(lines) // samples) if bars[2:] else 2
            for bar in bars[::every]:
                line = self._known(bar[:LONGEST])
                if line is not None:
                    self._feed(line, said(bar[:LONGEST]), file, first + place)

    def _known(self, line: bytes) -> _Line | None:
        key = line.translate(None, b"0123456789")
        if key not in self._lines:
            if self._new == NEW_LINES:
                return None
            self._new += 1
            if len(self._lines) >= MOST_LINES:
                self._lines.clear()
            self._lines[key] = _read(line.decode(errors="replace"))
        return self._lines[key]

    def _feed(self, line: _Line, said: Said, file: str, number: int) -> None:
        match = line.form.text.search(said.text)
        if match is None:
            return
        step = line.step.search(said.text) if line.step is not None else None
        size = SIZE.search(said.text) if line.sized else None
        key = _Key(file, said.rank, match["figure"], line.before, size and size.group())
        series = self._series.get(key)
        if series is None:
            if len(self._series) >= MOST_SERIES:
                return
            series = self._series[key] = _Series(line.form.per_second)
        value = float(match["value"].replace(",", ""))
        if value:
            series.add(number, int(step[1]) if step is not None else None, value)

    def sections(self) -> Iterator[PrintedPace]:
        """The series that are long enough, once all is read."""
        found = tuple(
            PaceSeries(
                figure=key.figure,
                file=key.file,
                rank=key.rank,
                per_second=one.per_second,
                lines=tuple(line for line, _, _ in one.points),
                steps=tuple(step for _, step, _ in one.points),
                values=tuple(value for _, _, value in one.points),
            )
            for key, one in self._series.items()
            if len(one.points) >= FEWEST_POINTS
        )
        if found:
            yield PrintedPace(series=found)


def _read(text: str) -> _Line | None:
    """What a line says but for its numbers; None: it has no figure."""
    for form in FORMS:
        if match := form.text.search(text):
            before = text[: match.start()].partition("%|")[0][-BEFORE:]
            step = next((one for one in STEPS if one.search(text)), None)
            return _Line(form, DIGITS.sub("", before), step, SIZE.search(text) is not None)
    return None
