"""Lines on which an expression takes longest: what a part of it matches, over and over, and an end
that does not match."""

from __future__ import annotations

import importlib
import pkgutil
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from ddoctor.reading.machine.kind import Kind

if sys.version_info >= (3, 11):
    codes: Any = importlib.import_module("re._constants")
    parser: Any = importlib.import_module("re._parser")
else:
    codes = importlib.import_module("sre_constants")
    parser = importlib.import_module("sre_parse")

ALPHABET = "a0 .-A/_:x=,|#\t'\"([%<é"
"""Characters of which the first ones that a set has stand for it."""
FEW = 2
MANY = 12
"""A repetition below this is none."""
SPOILT = "\x01"
REPEATS = (codes.MAX_REPEAT, codes.MIN_REPEAT)

Node = tuple[Any, Any]


def lines(pattern: re.Pattern[str], length: int) -> Iterator[str]:
    """The lines for each repetition within an expression, of about this length."""
    tree = parser.parse(pattern.pattern, pattern.flags & ~re.UNICODE)
    for before, unit in dict.fromkeys(_repetitions([*tree], "")):
        for begins, repeats in (before, unit), ("", before + unit), ("", before + unit * 20):
            yield begins + repeats * max(1, length // len(repeats)) + SPOILT


def _repetitions(nodes: Sequence[Node], before: str) -> Iterator[tuple[str, str]]:
    """What stands before each repetition, and what it repeats."""
    for place, node in enumerate(nodes):
        code, value = node
        here = before + "".join(_sample(one) for one in nodes[:place])
        if code in REPEATS:
            _, most, inner = value
            if most >= MANY:
                yield from ((here, unit) for unit in _samples([*inner]) if unit)
            yield from _repetitions([*inner], here)
        elif code is codes.SUBPATTERN:
            yield from _repetitions([*value[-1]], here)
        elif code is codes.BRANCH:
            for branch in value[1]:
                yield from _repetitions([*branch], here)
        elif code in (codes.ASSERT, codes.ASSERT_NOT):
            yield from _repetitions([*value[1]], here)


def _samples(nodes: Sequence[Node]) -> Iterator[str]:
    """A few texts that a sequence matches; of a single set, a few of its characters."""
    if len(nodes) == 1:
        code, value = nodes[0]
        if code is codes.BRANCH:
            for branch in value[1]:
                yield from _samples([*branch])
            return
        if code is codes.SUBPATTERN:
            yield from _samples([*value[-1]])
            return
        if code in (codes.IN, codes.ANY, codes.NOT_LITERAL):
            yield from islice((one for one in ALPHABET if _has(nodes[0], one)), FEW)
            return
    yield "".join(map(_sample, nodes))


def _sample(node: Node) -> str:
    """A text that a part matches, as far as that is easy to say."""
    code, value = node
    if code is codes.LITERAL:
        return chr(value)
    if code in (codes.IN, codes.ANY, codes.NOT_LITERAL):
        return next((one for one in ALPHABET if _has(node, one)), "")
    if code is codes.BRANCH:
        return "".join(map(_sample, value[1][0]))
    if code is codes.SUBPATTERN:
        return "".join(map(_sample, value[-1]))
    if code in REPEATS:
        least, _, inner = value
        return "".join(map(_sample, inner)) * max(1, int(least))
    return ""


def _has(node: Node, character: str) -> bool:
    code, value = node
    if code is codes.ANY:
        return True
    if code is codes.NOT_LITERAL:
        return bool(ord(character) != value)
    told = {codes.NEGATE: False}
    found = False
    for kind, what in value:
        if kind is codes.LITERAL:
            found |= ord(character) == what
        elif kind is codes.RANGE:
            found |= what[0] <= ord(character) <= what[1]
        elif kind is codes.CATEGORY:
            found |= re.match(CATEGORIES[what], character) is not None
        elif kind is codes.NEGATE:
            told[kind] = True
    return found != told[codes.NEGATE]


CATEGORIES = {
    codes.CATEGORY_DIGIT: r"\d",
    codes.CATEGORY_NOT_DIGIT: r"\D",
    codes.CATEGORY_SPACE: r"\s",
    codes.CATEGORY_NOT_SPACE: r"\S",
    codes.CATEGORY_WORD: r"\w",
    codes.CATEGORY_NOT_WORD: r"\W",
}


def patterns(package: str) -> Mapping[str, re.Pattern[str]]:
    """The expressions of all modules of a package, by name."""
    top = importlib.import_module(package)
    found: dict[str, re.Pattern[str]] = {}
    for one in pkgutil.walk_packages(top.__path__, f"{package}."):
        module = importlib.import_module(one.name)
        for name, value in vars(module).items():
            found |= {f"{one.name}.{way}": pattern for way, pattern in _within(value, name)}
    # A module may have those of another.
    return {name: pattern for pattern, name in {one: name for name, one in found.items()}.items()}


def _within(value: object, name: str) -> Iterator[tuple[str, re.Pattern[str]]]:
    if isinstance(value, re.Pattern) and isinstance(value.pattern, str):
        yield name, value
    elif isinstance(value, (tuple, list)):
        for number, one in enumerate(value):
            yield from _within(one, f"{name}[{number}]")
    elif isinstance(value, Kind):
        for field in ("begins", "goes_on", "command"):
            yield from _within(getattr(value, field), f"{name}.{field}")
