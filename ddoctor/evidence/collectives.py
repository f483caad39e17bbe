"""The bandwidth of each collective within each host, across hosts, and over all ranks."""

from __future__ import annotations

from typing import ClassVar, Literal

from ddoctor.evidence.probes import RankPlace, SweepPoint, WrongValue
from ddoctor.evidence.section import Part, Section
from ddoctor.models import Command

Scope = Literal["within", "across", "all"]
"""within: one host; across: one rank of each host; all: all ranks."""

Collective = Literal["all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast"]


class Sweep(Part, frozen=True, kw_only=True):
    """One collective in one scope, over message sizes; bytes as nccl-tests count them."""

    collective: Collective
    scope: Scope
    host: str = ""
    """The host, for the scope ``within``."""
    ranks: tuple[int, ...]
    points: tuple[SweepPoint, ...] = ()
    wrong: tuple[WrongValue, ...] = ()
    skipped: str = ""
    """Why it was not measured: this backend lacks it."""


class Collectives(Section, frozen=True, kw_only=True):
    """Five collectives over message sizes, with verified values."""

    probe: ClassVar[str] = "collectives"
    commands: ClassVar[tuple[Command, ...]] = ("probe",)

    backend: str
    ranks: tuple[RankPlace, ...]
    sweeps: tuple[Sweep, ...]
