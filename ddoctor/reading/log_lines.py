"""Finds the lines of a log that may mean something, at the speed of a disk.

A log of a week repeats a few forms of lines, which differ in their numbers. Each form is looked at
once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

from ddoctor import knowledge
from ddoctor.evidence.log import LogPattern, LogPatterns
from ddoctor.reading.inputs import CARRIAGE_RETURN

DIGITS = b"0123456789"
MOST_FORMS = 100_000
LONGEST_FORM = 500
"""Bytes of a form that is remembered."""
FEW_BARS = 64
"""The number of bars that count in a block, the last ones."""

# What a traceback begins with: its head, or where that is missing its first frame or its exception.
OF_TRACEBACKS = ("traceback (most recent", '  file "', "error: ", "exception: ")
# What a stack begins with, as py-spy and faulthandler print it.
OF_STACKS = ("most recent call first", "thread  (", "fatal python error")
# torch/distributed/elastic/multiprocessing/errors: rows of the table at the end.
OF_TABLES = ("exitcode", "(local_rank: ")


@dataclass(frozen=True)
class Pattern:
    """A row of the table, ready to be searched for."""

    row: LogPattern
    text: re.Pattern[str]


@cache
def patterns() -> tuple[Pattern, ...]:
    """The lines that mean something."""
    rows = knowledge.load(LogPatterns).patterns
    return tuple(Pattern(row, re.compile(row.text)) for row in rows)


@dataclass(frozen=True)
class Meaning:
    """What a line may mean."""

    patterns: tuple[Pattern, ...]
    """The rows that it may match."""
    bar: bool
    """Whether it can only say how far some work is; the latest of several counts."""


@dataclass
class Forms:
    """Which lines of a file may mean something."""

    _known: dict[bytes, Meaning | None] = field(default_factory=dict)

    def of_block(self, block: bytes) -> Sequence[Meaning | None]:
        """What each line of a block may mean; None: nothing."""
        forms = block.translate(None, DIGITS).lower().split(b"\n")
        meanings = [
            self._of_parts(form) if CARRIAGE_RETURN in form else self._meaning(form)
            for form in forms
        ]
        bars = [place for place, meaning in enumerate(meanings) if meaning and meaning.bar]
        for place in bars[:-FEW_BARS]:
            meanings[place] = None
        return meanings

    def _of_parts(self, form: bytes) -> Meaning | None:
        """What a line may mean that overwrites itself, as bars of progress do."""
        parts = [self._meaning(part) for part in {*form.split(CARRIAGE_RETURN)}]
        found = [meaning for meaning in parts if meaning is not None]
        if len(found) < 2:
            return found[0] if found else None
        rows = {one.row.name: one for meaning in found for one in meaning.patterns}
        return Meaning(tuple(rows.values()), bar=all(meaning.bar for meaning in found))

    def _meaning(self, form: bytes) -> Meaning | None:
        try:
            return self._known[form]
        except KeyError:
            meaning = _meaning(form)
        if len(form) <= LONGEST_FORM:
            if len(self._known) >= MOST_FORMS:
                self._known.clear()
            self._known[form] = meaning
        return meaning


def _meaning(form: bytes) -> Meaning | None:
    if not any(text in form for text in _fewest()):
        return None
    found = tuple(one for one, texts in _texts() if any(text in form for text in texts))
    other = any(text in form for text in _least((*OF_TRACEBACKS, *OF_STACKS, *OF_TABLES)))
    return Meaning(found, bar=not other and all(one.row.latest for one in found))


@cache
def _texts() -> Sequence[tuple[Pattern, tuple[bytes, ...]]]:
    """Each pattern with the texts of which a form holds one."""
    return [(one, _least(one.row.holds)) for one in patterns()]


@cache
def _fewest() -> tuple[bytes, ...]:
    """Texts of which each form holds one that may mean something."""
    holds = (text for one in patterns() for text in one.row.holds)
    return _least((*holds, *OF_TRACEBACKS, *OF_STACKS, *OF_TABLES))


@cache
def _least(texts: tuple[str, ...]) -> tuple[bytes, ...]:
    """The texts as forms have them, but for those that contain another one."""
    every = {text.encode().translate(None, DIGITS) for text in texts}
    return tuple(one for one in sorted(every) if not any(o in one for o in every - {one}))
