"""What each collective reaches: within each host, across the hosts, over all ranks."""

from __future__ import annotations

from typing import ClassVar, Literal

from ddoctor.evidence.probes import RankPlace, SweepPoint, WrongValue
from ddoctor.evidence.section import Part, Section

Scope = Literal["within", "across", "all"]
"""Within one host; across the hosts, with one rank of each; all ranks."""

Collective = Literal["all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast"]


class Sweep(Part, frozen=True, kw_only=True):
    """One collective in one scope, over message sizes; bytes as nccl-tests count them."""

    collective: Collective
    scope: Scope
    host: str = ""
    """Of the scope ``within``."""
    ranks: tuple[int, ...]
    points: tuple[SweepPoint, ...] = ()
    wrong: tuple[WrongValue, ...] = ()
    skipped: str = ""
    """Why it was not measured: this backend does not have it."""


class Collectives(Section, frozen=True, kw_only=True):
    """Five collectives, values verified."""

    probe: ClassVar[str] = "collectives"
    between_hosts: ClassVar[bool] = True

    backend: str
    ranks: tuple[RankPlace, ...]
    sweeps: tuple[Sweep, ...]
