"""How the reader of an environment variable interprets its value, and which name was meant."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cache

from ddoctor.evidence.known_software import KnownVariable, KnownVariables

TRUE = ("1", "y", "yes", "t", "true")
FALSE = ("0", "n", "no", "f", "false")
# torch/csrc/distributed/c10d/Utils.hpp (getCvarBool) and accelerate/utils/environment.py
# (str_to_bool): both raise on any other word.
BOOLEANS: Mapping[str, tuple[str, ...]] = {
    "torch-boolean": (*TRUE, *FALSE),
    "accelerate-boolean": (*TRUE, "on", *FALSE, "off"),
}
# The names of one library resemble each other: of those in variables.toml one in six has a sibling
# that difflib rates 0.88 similar, so a new name would often look like a misspelt old one. Compared
# word by word, as here, it is one in sixty (tests/knowledge/test_variables.py).
SIMILAR = 0.75
ABBREVIATED = 0.8
UNITS = {"k": 2**10, "m": 2**20, "g": 2**30}


@dataclass(frozen=True, kw_only=True)
class Misread:
    """A value that its reader interprets in another way than intended."""

    happens: str
    """How the reader interprets it, as a sentence with the reader as its subject."""
    intended: str | None = None
    """The probably intended value, in the form that the reader accepts."""
    fatal: bool = False
    """Whether the reader raises an error, which ends the run."""


def misread(variable: KnownVariable, value: str, reader: str) -> Misread | None:
    """How the reader fails to understand this value; None: it understands it."""
    match variable.kind:
        case "integer":
            return _misread_number(variable, value, reader) if value else None
        case "torch-integer":
            if re.match(r"\s*[+-]?\d", value):
                return _out_of_bounds(variable, c_integer(value)[0], reader)
            return Misread(happens=f"{reader} expects a number and raises an error", fatal=True)
        case "torch-boolean" | "accelerate-boolean" | "choice" | "exact":
            return _not_one_of(variable, value, reader)
        case "counts":
            if all(re.fullmatch(r"\s*0*[1-9]\d*\s*", one) for one in value.split(",")):
                return None
            return Misread(happens=f"{reader} expects positive numbers and ignores it")
        case "list" | "per-function-list":
            return _misread_list(variable, value, reader)
        case _:
            return None


def _misread_number(variable: KnownVariable, value: str, reader: str) -> Misread | None:
    taken, rest = c_integer(value)
    if rest.strip():
        happens = f"{reader} expects a number and reads it as {taken}"
        unit = re.fullmatch(r"\s*([kmg])i?b?", rest.lower())
        if unit:
            return Misread(happens=happens, intended=str(taken * UNITS[unit[1]]))
        if value.lower() in (*FALSE, "off"):
            return None
        return Misread(happens=happens, intended="1" if value.lower() in (*TRUE, "on") else None)
    return _out_of_bounds(variable, taken, reader)


def _out_of_bounds(variable: KnownVariable, taken: int, reader: str) -> Misread | None:
    fatal = variable.kind == "torch-integer"
    if variable.minimum is not None and taken < variable.minimum:
        return Misread(happens=f"{reader} expects at least {variable.minimum}", fatal=fatal)
    if variable.maximum is not None and taken > variable.maximum:
        return Misread(happens=f"{reader} expects at most {variable.maximum}", fatal=fatal)
    return None


def _not_one_of(variable: KnownVariable, value: str, reader: str) -> Misread | None:
    values = BOOLEANS.get(variable.kind, variable.values)
    meant = next((one for one in values if one.lower() == value.lower()), None)
    if value in values or (meant is not None and variable.kind != "exact"):
        return None
    fatal = variable.kind in BOOLEANS or variable.otherwise == "fails"
    return Misread(
        happens=f"{reader} accepts {', '.join(values)}, and "
        + ("raises an error for any other value" if fatal else "ignores any other value"),
        intended=meant or intended(value, values),
        fatal=fatal,
    )


def _misread_list(variable: KnownVariable, value: str, reader: str) -> Misread | None:
    parts = value.split(";") if variable.kind == "per-function-list" else [value]
    known = {one.lower() for one in variable.values}
    for part in parts:
        for word in part.rpartition(":")[2].removeprefix("^").split(","):
            if word and word.lower() not in known:
                meant = intended(word, tuple(one.upper() for one in variable.values))
                return Misread(
                    happens=f"{reader} does not know {word!r} (it knows "
                    f"{', '.join(variable.values)}) and "
                    + ("rejects all of it" if variable.otherwise == "fails" else "ignores it"),
                    intended=meant and value.replace(word, meant),
                    fatal=variable.otherwise == "fails",
                )
    return None


def intended_name(known: KnownVariables, name: str) -> str | None:
    """The known name that this unknown name probably means; None: none."""
    return intended(name, tuple(one.name for one in known.variables if not one.removed))


def normal(known: KnownVariables, name: str, value: str) -> str:
    """A value as its reader interprets it: 01 and 1, or true and 1, compare equal."""
    variable = known.by_name.get(name)
    kind = variable.kind if variable is not None else "text"
    if kind == "integer":
        return str(c_integer(value)[0])
    if kind in BOOLEANS:
        return "1" if value.lower() in (*TRUE, "on") else "0"
    return value.strip().lower()


def holds(known: KnownVariables, name: str, value: str | None, values: tuple[str, ...]) -> bool:
    """Whether a variable is set to one of these values (``*``: to any)."""
    if value is None:
        return False
    wanted = {normal(known, name, one) for one in values}
    variable = known.by_name.get(name)
    listed = variable is not None and variable.kind == "list"
    given = {normal(known, name, one) for one in (value.split(",") if listed else [value])}
    return "*" in values or not wanted.isdisjoint(given)


def c_integer(text: str) -> tuple[int, str]:
    """What C's ``strtoll(text, &rest, 0)`` returns, and the rest."""
    number = re.match(r"\s*([+-]?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)", text)
    if number is None:
        return 0, text
    digits = number[2].lower()
    base = 16 if digits.startswith("0x") else 8 if digits.startswith("0") else 10
    # Of more digits, Python refuses to read thousands; the value is the limit of 64 bits anyway.
    value = min(int(digits[:64], base), 2**63 - 1)
    return -value if number[1] == "-" else value, text[number.end() :]


@cache
def intended(name: str, known: tuple[str, ...]) -> str | None:
    """The known name that differs by a typo in one word, the order of words or a ``_``.

    The hosts of a cluster share variable names, so the result is cached.
    """
    candidates = sorted(_likenesses(name.upper(), known), reverse=True)
    return candidates[0][1] if candidates else None


def _likenesses(name: str, known: Iterable[str]) -> Iterator[tuple[float, str]]:
    words = name.split("_")
    for other in known:
        others = other.split("_")
        if sorted(words) == sorted(others) or name.replace("_", "") == other.replace("_", ""):
            yield 1.0, other
        elif len(words) == len(others):
            slips = [_likeness(a, b) for a, b in zip(words, others, strict=True) if a != b]
            if len(slips) == 1 and slips[0] >= SIMILAR:
                yield slips[0], other


def _likeness(word: str, other: str) -> float:
    ratio = SequenceMatcher(None, word, other).ratio()
    short, long = sorted((word, other), key=len)
    return max(ratio, ABBREVIATED) if len(short) > 1 and long.startswith(short) else ratio
