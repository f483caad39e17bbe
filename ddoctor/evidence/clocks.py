"""How far apart the clocks of the hosts are."""

from __future__ import annotations

from typing import ClassVar

from ddoctor.evidence.section import Part, Section


class ClockOffset(Part, frozen=True, kw_only=True):
    """A host's clock against that of the first rank's host, in seconds."""

    host: str
    offset: float
    """Positive: this clock is ahead."""
    uncertainty: float
    """The true offset lies within ± this: half of the shortest round trip."""


class ClockOffsets(Section, frozen=True, kw_only=True):
    """The clocks of all hosts; the first rank's own is among them, with offset 0."""

    probe: ClassVar[str] = "clock_skew"
    between_hosts: ClassVar[bool] = True

    offsets: tuple[ClockOffset, ...]
