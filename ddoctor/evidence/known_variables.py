"""The table of the variables that NCCL, torch, Accelerate and others read, and how they do it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import ClassVar, Literal

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
