"""The table of variables that NCCL, torch, Accelerate and others read, and how they parse them."""

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
"""How the reader parses the value. integer: C's strtoll, which reads any word as 0. choice: one of
``values``, in any case; exact: case-sensitive. list: several of them, separated by commas; a
leading ``^`` excludes. per-function-list: such lists by function, as NCCL_ALGO. counts: positive
integers separated by commas."""


class VariableSource(Part, frozen=True, kw_only=True):
    """The origin of rows, and the program that reads their variables."""

    reader: str
    text: str
    newest: str = ""
    """The reader's newest release that the rows cover; empty: not relevant."""


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
    """The reader's first release with it; empty: not known, or older than the table."""
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
    """A variable with values that should not stay set."""

    name: str
    values: tuple[str, ...]
    effect: str
    """Its effect and cost, as the end of a sentence that begins with the setting."""
    severity: Literal["note", "warning"]
    source: str


class Stopgap(Setting, frozen=True, kw_only=True):
    """A setting that disables a feature, and the evidence that the feature would work here."""

    path: Literal["p2p", "shm", "nvls", "rdma", "gdr", "gpu"]
    unless: str = ""
    """A prefix of variables whose owner requires this setting."""


class DebugSetting(Setting, frozen=True, kw_only=True):
    """A setting for debugging that costs time."""

    only_with: Mapping[str, tuple[str, ...]] = {}
    """The effect depends on these variables having one of these values."""


class Contradiction(Part, frozen=True, kw_only=True):
    """Settings that contradict each other; ``*`` matches any value."""

    settings: Mapping[str, tuple[str, ...]]
    effect: str
    unset: str
    severity: Literal["note", "warning", "error"]
    source: str


class Bounds(Part, frozen=True, kw_only=True):
    """Two numbers, the first of which must not exceed the second."""

    lower: str
    upper: str
    source: str


class KnownVariables(Known, frozen=True, kw_only=True, dict=True):
    """Every known variable, and known problems with some of their values."""

    table: ClassVar[str] = "variables.toml"

    families: tuple[str, ...]
    """Prefixes whose names are all in the table."""
    sources: Mapping[str, VariableSource]
    variables: tuple[KnownVariable, ...]
    foreign: tuple[Foreign, ...]
    stopgaps: tuple[Stopgap, ...]
    debugging: tuple[DebugSetting, ...]
    contradictions: tuple[Contradiction, ...]
    bounds: tuple[Bounds, ...]

    @cached_property
    def by_name(self) -> Mapping[str, KnownVariable]:
        """The rows of ``variables`` by name."""
        return {variable.name: variable for variable in self.variables}

    def reader(self, variable: KnownVariable) -> str:
        """The program that reads a variable."""
        return self.sources[variable.source].reader
