"""The types of a diagnosis: Finding, Fix, Result and Report. Standard library only.

The field names are those of the JSON report, schema 1 (``docs/report.schema.json``). A Report in
JSON contains these types and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sized
from dataclasses import dataclass, field
from enum import Enum
from functools import total_ordering
from typing import Literal, Protocol

SCHEMA = 1

Command = Literal["doctor", "probe", "run", "attach", "diagnose", "plan"]
Language = Literal["sh", "yaml", "python", "diff", "text"]
Value = bool | int | float | str


@total_ordering
class _Ordered(Enum):
    """Members compare by their order of definition, lowest first."""

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, type(self)):
            return NotImplemented
        members = list(type(self))
        return members.index(self) < members.index(other)


class Severity(_Ordered):
    """A note costs nothing now, a warning costs speed, an error stops a run."""

    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"


class Confidence(_Ordered):
    """The check's certainty. Below certain, the finding says which evidence would settle it."""

    POSSIBLE = "possible"
    LIKELY = "likely"
    CERTAIN = "certain"


class Verdict(Enum):
    """Findings: something at warning or above. Incomplete: something could not be examined."""

    HEALTHY = "healthy"
    FINDINGS = "findings"
    INCOMPLETE = "incomplete"


class Placed(Protocol):
    """Evidence about one rank."""

    @property
    def host(self) -> str: ...
    @property
    def rank(self) -> int: ...


@dataclass(frozen=True, kw_only=True)
class Where:
    """Hosts, ranks and devices; an empty field means all of them or does not apply."""

    hosts: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    devices: tuple[str, ...] = ()

    @classmethod
    def of(cls, rows: Iterable[Placed], *, every: Sized = ()) -> Where:
        """The place of these ranks; empty if they are as many as ``every``."""
        hosts = {one.rank: one.host for one in rows}
        if len(hosts) == len(every):
            return cls()
        ranks = tuple(sorted(rank for rank in hosts if rank >= 0))
        return cls(hosts=tuple(sorted({*hosts.values()} - {""})), ranks=ranks)

    def meets(self, other: Where) -> bool:
        """Whether both may describe the same place: no field has disjoint values."""
        pairs = (
            (self.hosts, other.hosts),
            (self.ranks, other.ranks),
            (self.devices, other.devices),
        )
        return all(not a or not b or bool(set(a) & set(b)) for a, b in pairs)


@dataclass(frozen=True, kw_only=True)
class Observation:
    """One row of evidence: measured value, expected value, and the source of the expectation."""

    name: str
    value: Value
    unit: str = ""
    expected: Value | None = None
    source: str = ""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The cost of a problem, say 0.31 "share of step" or 12.5 "GiB"."""

    value: float
    unit: str


@dataclass(frozen=True, kw_only=True)
class Verified:
    """A control run: the same figure measured without and with the fix."""

    before: float
    after: float
    unit: str


@dataclass(frozen=True, kw_only=True)
class Fix:
    """One remedy. ``paste`` is complete text; ``caution`` says what it costs."""

    summary: str
    paste: str
    language: Language = "sh"
    caution: str = ""
    expected_gain: str | None = None
    environment: tuple[str, ...] = ()
    """What a control run can try on the finding's hosts: NAME=value, or NAME alone to unset it."""
    settings: tuple[str, ...] = ()
    """What it can try on the script: ``loader.num_workers=3``, ``torch.threads=1``, …"""
    verified: Verified | None = None

    @classmethod
    def python(
        cls,
        *,
        summary: str,
        paste: str,
        caution: str = "",
        expected_gain: str | None = None,
        settings: tuple[str, ...] = (),
    ) -> Fix:
        """A remedy in the training script."""
        return cls(
            summary=summary,
            paste=paste,
            language="python",
            caution=caution,
            expected_gain=expected_gain,
            settings=settings,
        )


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One cause in one place, with the numbers that show it and the fixes.

    A check leaves ``cause`` and ``consequences`` empty, and mostly ``title``, unless it has a more
    exact one. The engine fills them from the check's name, its docstring and its ``EXPLAINS``.
    """

    severity: Severity
    confidence: Confidence
    because: str
    evidence: tuple[Observation, ...] = ()
    where: Where = field(default_factory=Where)
    cost: Cost | None = None
    fixes: tuple[Fix, ...] = ()
    cause: str = ""
    title: str = ""
    consequences: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Skipped:
    """A check, or one of its functions, that lacked evidence."""

    check: str
    reason: str


JUDGING = "judging the run"
"""Replaces the check's name if a recorded run has too little data for any check."""


@dataclass(frozen=True, kw_only=True)
class Crashed:
    """A check or probe that itself failed; everything else continued."""

    check: str
    error: str


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of one function of a check: findings, skipped or crashed."""

    check: str
    findings: tuple[Finding, ...] = ()
    skipped: str | None = None
    crashed: str | None = None


@dataclass(frozen=True, kw_only=True)
class World:
    """The extent of the examination."""

    hosts: tuple[str, ...] = ()
    """The hosts that ddoctor examined."""
    ranks: int = 0
    backend: str = ""


@dataclass(frozen=True, kw_only=True)
class Report:
    """The whole diagnosis; ``findings`` are in the order to fix them."""

    schema: int = SCHEMA
    ddoctor: str
    command: Command
    created: str
    verdict: Verdict
    world: World
    findings: tuple[Finding, ...]
    skipped: tuple[Skipped, ...]
    crashed: tuple[Crashed, ...]
    unexplained: tuple[str, ...] = ()
    """Without a finding above a note: large shares of the time that no finding covers."""

    @property
    def exit_code(self) -> int:
        """0: nothing at warning or above. 1: findings. 2: something could not be examined."""
        if any(finding.severity > Severity.NOTE for finding in self.findings):
            return 1
        return 2 if self.verdict is Verdict.INCOMPLETE else 0
