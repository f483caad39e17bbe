"""Finds the lines of a log that may mean something, at the speed of a disk.

A log of a week repeats a few forms of lines, which differ in their numbers. Each form is looked at
once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache

from ddoctor import knowledge
from ddoctor.evidence.log import LogPattern, LogPatterns
from ddoctor.reading.inputs import CARRIAGE_RETURN
from ddoctor.reading.machine.kind import Kind
from ddoctor.reading.machine.outputs import KINDS, PROMPTS

DIGITS = b"0123456789"
MOST_FORMS = 100_000
LONGEST_FORM = 500
"""Bytes of a form that is remembered."""
LONGEST_BEGINNING = 1_000
"""Bytes of a form that begins the output of a command."""
FEW_BARS = 64
"""The number of bars that count in a block, the last ones."""

# What a traceback begins with: its head, or where that is missing its first frame or its exception.
OF_TRACEBACKS = ("traceback (most recent", '  file "', "error: ", "exception: ")
# What a stack begins with, as py-spy and faulthandler print it.
OF_STACKS = ("most recent call first", "thread  (", "fatal python error")
# torch/distributed/elastic/multiprocessing/errors: rows of the table at the end.
OF_TABLES = ("exitcode", "(local_rank: ")
OTHERS = (*OF_TRACEBACKS, *OF_STACKS, *OF_TABLES)


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
    outputs: tuple[Kind, ...]
    """The outputs of commands that it may begin."""
    prompt: bool
    """Whether it may be a command at a prompt."""
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
        return Meaning(
            tuple(rows.values()),
            tuple(dict.fromkeys(kind for meaning in found for kind in meaning.outputs)),
            prompt=any(meaning.prompt for meaning in found),
            bar=all(meaning.bar for meaning in found),
        )

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
    short = len(form) <= LONGEST_BEGINNING
    if not _holds(form, _fewest() if short else _of_long_forms()):
        return None
    found = tuple(one for one, texts in _texts() if _holds(form, texts))
    outputs = tuple(one for one, texts in _kinds() if short and _holds(form, texts))
    prompt = short and _holds(form, _least(PROMPTS))
    other = bool(outputs) or _holds(form, _least(OTHERS))
    bar = not other and all(one.row.latest for one in found)
    return Meaning(found, outputs, prompt=prompt, bar=bar)


def _holds(form: bytes, texts: tuple[bytes, ...]) -> bool:
    """Whether a form contains one of the texts; for each form, a loop is faster than any()."""
    for text in texts:  # noqa: SIM110
        if text in form:
            return True
    return False


@cache
def _texts() -> Sequence[tuple[Pattern, tuple[bytes, ...]]]:
    """Each pattern with the texts of which a form holds one."""
    return [(one, _least(one.row.holds)) for one in patterns()]


@cache
def _kinds() -> Sequence[tuple[Kind, tuple[bytes, ...]]]:
    """Each kind of output with the texts of which the form of its beginning holds one."""
    return [(one, _least(one.holds)) for one in KINDS]


@cache
def _fewest() -> tuple[bytes, ...]:
    """Texts of which each form holds one that may mean something."""
    outputs = (text for one in KINDS for text in one.holds)
    return _least((*_of_patterns(), *OTHERS, *outputs, *PROMPTS))


@cache
def _of_long_forms() -> tuple[bytes, ...]:
    """The same without the beginnings of outputs, which are short."""
    return _least((*_of_patterns(), *OTHERS))


def _of_patterns() -> Iterator[str]:
    return (text for one in patterns() for text in one.row.holds)


@cache
def _least(texts: tuple[str, ...]) -> tuple[bytes, ...]:
    """The texts as forms have them, but for those that contain another one."""
    every = {text.encode().translate(None, DIGITS) for text in texts}
    return tuple(one for one in sorted(every) if not any(o in one for o in every - {one}))
