"""The table of the variables that NCCL, torch, Accelerate and others read, and how they do it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from typing import ClassVar, Literal

from ddoctor.analysis.misspelling import intended
from ddoctor.evidence.section import Known, Part

Kind = Literal[
    "text",
    "integer",
    "torch-integer",
    "torch-boolean",
    "accelerate-boolean",
    "counts",
    "choice",
    "exact",
    "list",
    "per-function-list",
    "input-file",
    "output-file",
]
"""How the reader takes the value. integer: C's strtoll, which makes 0 of any word. choice: one of
``values``, in any case; exact: as written. list: several of them, separated by commas, ``^`` in
front excludes. per-function-list: such lists by function, as NCCL_ALGO takes. counts: positive
integers separated by commas."""

TRUE = ("1", "y", "yes", "t", "true")
FALSE = ("0", "n", "no", "f", "false")
# torch/csrc/distributed/c10d/Utils.hpp (getCvarBool) and accelerate/utils/environment.py
# (str_to_bool): both raise on any other word.
BOOLEANS: Mapping[str, tuple[str, ...]] = {
    "torch-boolean": (*TRUE, *FALSE),
    "accelerate-boolean": (*TRUE, "on", *FALSE, "off"),
}
UNITS = {"k": 2**10, "m": 2**20, "g": 2**30}


class Misread(Part, frozen=True, kw_only=True):
    """A value that its reader does not take as it was meant."""

    happens: str
    """What the reader makes of it, with the reader as the subject."""
    intended: str | None = None
    """What was probably meant, as the reader takes it."""
    fatal: bool = False
    """The reader raises, so the run ends."""


class VariableSource(Part, frozen=True, kw_only=True):
    """Where rows were taken from, and which program reads the variables of those rows."""

    reader: str
    text: str
    newest: str = ""
    """The reader's release up to which the rows hold; empty: it does not matter."""


class KnownVariable(Part, frozen=True, kw_only=True):
    """One variable that some program reads."""

    name: str
    kind: Kind = "text"
    values: tuple[str, ...] = ()
    minimum: int | None = None
    maximum: int | None = None
    otherwise: Literal["", "ignored", "fails"] = ""
    """What the reader does with any other value."""
    since: str = ""
    """The reader's first release that has it; empty: not known, or before the table begins."""
    removed: str = ""
    """The reader's first release without it."""
    now: str = ""
    """Its new name."""
    source: str
    """A key of the table's ``sources``."""

    def misread(self, value: str, reader: str) -> Misread | None:
        """How the reader fails to understand this value; None: it understands it."""
        match self.kind:
            case "integer":
                return self._misread_number(value, reader) if value else None
            case "torch-integer":
                if re.match(r"\s*[+-]?\d", value):
                    return self._out_of_bounds(c_integer(value)[0], reader, fatal=True)
                return Misread(happens=f"{reader} takes a number and raises an error", fatal=True)
            case "torch-boolean" | "accelerate-boolean":
                return self._not_one_of(BOOLEANS[self.kind], value, reader, fatal=True)
            case "counts":
                if all(re.fullmatch(r"\s*0*[1-9]\d*\s*", one) for one in value.split(",")):
                    return None
                return Misread(happens=f"{reader} takes positive numbers and ignores it")
            case "choice" | "exact":
                fatal = self.otherwise == "fails"
                return self._not_one_of(self.values, value, reader, fatal=fatal)
            case "list" | "per-function-list":
                return self._misread_list(value, reader)
            case _:
                return None

    def _misread_number(self, value: str, reader: str) -> Misread | None:
        taken, rest = c_integer(value)
        if rest.strip():
            happens = f"{reader} takes a number and reads it as {taken}"
            unit = re.fullmatch(r"\s*([kmg])i?b?", rest.lower())
            if unit:
                return Misread(happens=happens, intended=str(taken * UNITS[unit[1]]))
            if value.lower() in (*FALSE, "off"):
                return None
            return Misread(
                happens=happens, intended="1" if value.lower() in (*TRUE, "on") else None
            )
        return self._out_of_bounds(taken, reader)

    def _out_of_bounds(self, taken: int, reader: str, *, fatal: bool = False) -> Misread | None:
        if self.minimum is not None and taken < self.minimum:
            return Misread(happens=f"{reader} takes at least {self.minimum}", fatal=fatal)
        if self.maximum is not None and taken > self.maximum:
            return Misread(happens=f"{reader} takes at most {self.maximum}", fatal=fatal)
        return None

    def _not_one_of(
        self, values: tuple[str, ...], value: str, reader: str, *, fatal: bool
    ) -> Misread | None:
        exact = self.kind == "exact"
        if value in values or (not exact and value.lower() in [one.lower() for one in values]):
            return None
        meant = next((one for one in values if one.lower() == value.lower()), None)
        return Misread(
            happens=f"{reader} takes {', '.join(values)}, and "
            + ("raises an error at anything else" if fatal else "ignores anything else"),
            intended=meant or intended(value, values),
            fatal=fatal,
        )

    def _misread_list(self, value: str, reader: str) -> Misread | None:
        parts = value.split(";") if self.kind == "per-function-list" else [value]
        known = {one.lower() for one in self.values}
        for part in parts:
            for word in part.rpartition(":")[2].removeprefix("^").split(","):
                if word and word.lower() not in known:
                    meant = intended(word, tuple(one.upper() for one in self.values))
                    return Misread(
                        happens=f"{reader} does not know {word!r} (it knows "
                        f"{', '.join(self.values)}) and "
                        + ("refuses the whole" if self.otherwise == "fails" else "ignores it"),
                        intended=meant and value.replace(word, meant),
                        fatal=self.otherwise == "fails",
                    )
        return None


class Foreign(Part, frozen=True, kw_only=True):
    """A prefix that another program uses within a family of names."""

    prefix: str
    owner: str
    source: str


class Setting(Part, frozen=True, kw_only=True):
    """A variable with values that it should not keep."""

    name: str
    values: tuple[str, ...]
    effect: str
    """What it does and costs, as the end of a sentence that begins with the setting."""
    severity: Literal["note", "warning"]
    source: str


class Stopgap(Setting, frozen=True, kw_only=True):
    """A setting that switches something off, and what tells that it would work here."""

    path: Literal["p2p", "shm", "nvls", "rdma", "gdr", "gpu"]
    unless: str = ""
    """A prefix of variables whose owner asks for this setting."""


class DebugSetting(Setting, frozen=True, kw_only=True):
    """A setting that helps to debug and costs time."""

    only_with: Mapping[str, tuple[str, ...]] = {}
    """It has this effect only while these variables have one of these values."""


class Contradiction(Part, frozen=True, kw_only=True):
    """Settings that cannot both be meant; ``*`` stands for any value."""

    settings: Mapping[str, tuple[str, ...]]
    effect: str
    unset: str
    severity: Literal["note", "warning", "error"]
    source: str


class Bounds(Part, frozen=True, kw_only=True):
    """Two numbers of which the first may not exceed the second."""

    lower: str
    upper: str
    source: str


class KnownVariables(Known, frozen=True, kw_only=True, dict=True):
    """Every variable that is known, and what is known about some of their values."""

    table: ClassVar[str] = "variables.toml"

    families: tuple[str, ...]
    """Prefixes of which the table holds every name."""
    sources: Mapping[str, VariableSource]
    variables: tuple[KnownVariable, ...]
    foreign: tuple[Foreign, ...]
    stopgaps: tuple[Stopgap, ...]
    debugging: tuple[DebugSetting, ...]
    contradictions: tuple[Contradiction, ...]
    bounds: tuple[Bounds, ...]

    @cached_property
    def by_name(self) -> Mapping[str, KnownVariable]:
        """The rows of ``variables`` by their name."""
        return {variable.name: variable for variable in self.variables}

    def reader(self, variable: KnownVariable) -> str:
        """The program that reads a variable."""
        return self.sources[variable.source].reader

    def intended(self, name: str) -> str | None:
        """The name in use that this unknown one is a slip of."""
        return intended(name, tuple(one.name for one in self.variables if not one.removed))

    def normal(self, name: str, value: str) -> str:
        """A value as its reader takes it, so that 01 and 1, or true and 1, compare equal."""
        variable = self.by_name.get(name)
        kind = variable.kind if variable is not None else "text"
        if kind == "integer":
            return str(c_integer(value)[0])
        if kind in BOOLEANS:
            return "1" if value.lower() in (*TRUE, "on") else "0"
        return value.strip().lower()

    def holds(self, name: str, value: str | None, values: tuple[str, ...]) -> bool:
        """Whether a variable is set to one of these values (``*``: to any)."""
        if value is None:
            return False
        wanted = {self.normal(name, one) for one in values}
        variable = self.by_name.get(name)
        listed = variable is not None and variable.kind == "list"
        given = {self.normal(name, one) for one in (value.split(",") if listed else [value])}
        return "*" in values or not wanted.isdisjoint(given)


def c_integer(text: str) -> tuple[int, str]:
    """What C's ``strtoll(text, &rest, 0)`` returns, and the rest."""
    number = re.match(r"\s*([+-]?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9]\d*)", text)
    if number is None:
        return 0, text
    digits = number[2].lower()
    base = 16 if digits.startswith("0x") else 8 if digits.startswith("0") else 10
    return int(number[1] + digits, base), text[number.end() :]
