"""Clock offsets between the hosts."""

from __future__ import annotations

from typing import ClassVar

from ddoctor.evidence.section import Part, Section
from ddoctor.models import Command


class ClockOffset(Part, frozen=True, kw_only=True):
    """A host's clock compared with that of the first rank's host, in seconds."""

    host: str
    offset: float
    """Seconds; positive: this clock is ahead."""
    uncertainty: float
    """Seconds; the true offset lies within ± this value, half of the shortest round trip."""


class ClockOffsets(Section, frozen=True, kw_only=True):
    """The clocks of all hosts; the first rank's host is included, with offset 0."""

    probe: ClassVar[str] = "clock_skew"
    commands: ClassVar[tuple[Command, ...]] = ("probe",)

    offsets: tuple[ClockOffset, ...]
