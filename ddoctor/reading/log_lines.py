"""Finds the lines of a log that may mean something, at the speed of a disk.

A log of a week repeats a few forms of lines, which differ in their numbers. Each form is looked at
once, and so is each word of those that are like no other.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property

from ddoctor import knowledge
from ddoctor.evidence.log import LineText, LogPatterns, Messages
from ddoctor.reading.inputs import CARRIAGE_RETURN
from ddoctor.reading.machine.kind import Kind
from ddoctor.reading.machine.outputs import KINDS, PROMPTS

DIGITS = b"0123456789"
MOST_FORMS = 100_000
LONGEST_FORM = 500
"""Bytes of a form that is remembered."""
MOST_WORDS = 100_000
PIECE = 4
"""Bytes of a word by which texts are looked up."""
LONGEST_BEGINNING = 1_000
"""Bytes of a form that begins the output of a command."""
FEW_BARS = 64
"""The number of bars that count in a block, the last ones."""
MOST_ALIKE = 10_000
"""Lines of one form that are looked at in a file. Each of many ranks writes some. A script may
catch its exceptions for days, and then the last ones say what the first ones do."""
FEW_ALIKE = 64
"""The same for lines of which each rank writes many that say the same, such as NCCL's channels."""

# The end of a prompt, and the beginning of a command.
COMMAND = re.compile(rb"[$#] +[a-z]")
# What a traceback begins with: its head, or where that is missing its first frame or its exception.
OF_TRACEBACKS = (
    *("traceback (most recent", '  file "', "error: ", "exception: ", "exception ignored in"),
    "](https://localhost:/#) in ",
    *("expected to have finished reduction", "expected to mark a variable", "tried to allocate"),
)
# What a stack begins with, as py-spy and faulthandler print it.
OF_STACKS = ("most recent call first", "thread  (", "fatal python error")
# torch/distributed/elastic/multiprocessing/errors: rows of the table at the end.
OF_TABLES = (
    *("exitcode", "(local_rank: ", "first observed failure", ": exited with exit code "),
    "closing signal sig",
)
OTHERS = (*OF_TRACEBACKS, *OF_STACKS, *OF_TABLES)


@dataclass(frozen=True)
class Pattern:
    """A row of the table, ready to be searched for."""

    row: LineText

    @cached_property
    def text(self) -> re.Pattern[str]:
        # A log has lines of few of them.
        return re.compile(self.row.text)


@cache
def patterns() -> tuple[Pattern, ...]:
    """The lines that mean something."""
    rows = (*knowledge.load(LogPatterns).patterns, *knowledge.load(Messages).messages)
    return tuple(map(Pattern, rows))


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
    few: bool
    """Whether the first of many such lines of a file say as much as all."""

    @cached_property
    def renewed(self) -> bool:
        """Whether the latest of many such lines may say something else."""
        # Of scattered lines the first ones are kept anyway.
        begins = any(not one.scattered for one in self.outputs)
        return self.prompt or begins or any(one.row.latest for one in self.patterns)


@dataclass
class Forms:
    """Which lines of a file may mean something."""

    _known: dict[bytes, Meaning | None] = field(default_factory=dict)
    _words: dict[bytes, tuple[bytes, ...]] = field(default_factory=dict)
    """By word, the texts that a form with this word may hold."""
    _alike: dict[bytes, int] = field(default_factory=dict)
    """How often each form with a meaning was met in the file."""

    def begin(self) -> None:
        """Begin a file."""
        self._alike.clear()

    def of_block(self, block: bytes) -> Sequence[Meaning | None]:
        """What each line of a block may mean; None: nothing."""
        forms = block.translate(None, DIGITS).lower().split(b"\n")
        meanings = [
            self._of_parts(form) if CARRIAGE_RETURN in form else self._meaning(form)
            for form in forms
        ]
        bars = []
        for place, meaning in enumerate(meanings):
            if meaning is None:
                continue
            if meaning.bar:
                bars.append(place)
            elif not meaning.renewed and self._too_often(forms[place], meaning):
                meanings[place] = None
        for place in bars[:-FEW_BARS]:
            meanings[place] = None
        return meanings

    def _too_often(self, form: bytes, meaning: Meaning) -> bool:
        most = FEW_ALIKE if meaning.few else MOST_ALIKE
        met = self._alike.get(form, 0)
        if met < most and len(form) <= LONGEST_FORM and len(self._alike) < MOST_FORMS:
            self._alike[form] = met + 1
        return met >= most

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
            few=all(meaning.few for meaning in found),
        )

    def _meaning(self, form: bytes) -> Meaning | None:
        try:
            return self._known[form]
        except KeyError:
            meaning = _meaning(form) if self._may_mean(form) else None
        if len(form) <= LONGEST_FORM:
            if len(self._known) >= MOST_FORMS:
                self._known.clear()
            self._known[form] = meaning
        return meaning

    def _may_mean(self, form: bytes) -> bool:
        """Whether a form may hold one of the texts, or is too long to look at each of its words."""
        if len(form) > LONGEST_BEGINNING:
            return True
        known = self._words
        for word in form.split():
            if word not in known:
                self._learn(word)
            if (texts := known[word]) and _holds(form, texts):
                return True
        return False

    def _learn(self, word: bytes) -> None:
        if len(self._words) >= MOST_WORDS:
            self._words.clear()
        self._words[word] = _texts_of(word)


def _meaning(form: bytes) -> Meaning | None:
    short = len(form) <= LONGEST_BEGINNING
    if not _holds(form, _fewest() if short else _of_long_forms()):
        return None
    found = tuple(one for one, texts in _texts() if _holds(form, texts))
    outputs = tuple(one for one, texts in _kinds() if short and _holds(form, texts))
    prompt = short and COMMAND.search(form) is not None
    other = prompt or bool(outputs) or _holds(form, _least(OTHERS))
    if not (found or other):
        return None
    bar = not other and all(one.row.latest for one in found)
    few = not other and all(one.row.few for one in found)
    return Meaning(found, outputs, prompt=prompt, bar=bar, few=few)


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


def _texts_of(word: bytes) -> tuple[bytes, ...]:
    """The texts that a form with this word may hold: the word holds the longest of theirs."""
    known = _longest_words()
    pieces = {word[place : place + PIECE] for place in range(len(word) - PIECE + 1)}
    found = itertools.chain(known[b""], *(known[piece] for piece in known.keys() & pieces))
    return tuple(text for text, longest in found if longest in word)


@cache
def _longest_words() -> Mapping[bytes, Sequence[tuple[bytes, bytes]]]:
    """Each text with its longest word, by the beginning of that word; short words: by nothing."""
    known: dict[bytes, list[tuple[bytes, bytes]]] = {b"": []}
    for text in _fewest():
        longest = max(text.split(), key=len)
        piece = longest[:PIECE] if len(longest) >= PIECE else b""
        known.setdefault(piece, []).append((text, longest))
    return known


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
    every = sorted({text.encode().translate(None, DIGITS) for text in texts})
    by_piece: dict[bytes, list[bytes]] = {}
    for text in every:
        by_piece.setdefault(text[:PIECE], []).append(text)

    def contains_another(text: bytes) -> bool:
        return any(
            other != text and text.startswith(other, place)
            for place in range(len(text))
            for other in by_piece.get(text[place : place + PIECE], ())
        )

    return tuple(text for text in every if not contains_another(text))
