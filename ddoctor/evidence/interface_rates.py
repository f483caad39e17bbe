"""TCP bandwidth between hosts, over each interface that all of them have."""

from __future__ import annotations

from typing import ClassVar

from ddoctor.evidence.section import Part, Section
from ddoctor.models import Command


class InterfaceRate(Part, frozen=True, kw_only=True):
    """One TCP connection from one host to another, between interfaces of the same name."""

    interface: str
    sender: str
    """The sending host."""
    receiver: str
    rates: tuple[float, ...] = ()
    """GB/s (1e9 bytes) of each repeat; empty: no connection."""
    error: str = ""


class InterfaceRates(Section, frozen=True, kw_only=True):
    """A ring of hosts, each sending to the next while it receives; without torch or NCCL."""

    probe: ClassVar[str] = "interfaces"
    commands: ClassVar[tuple[Command, ...]] = ("probe",)

    rates: tuple[InterfaceRate, ...]

    def of(self, interface: str) -> tuple[float, ...]:
        """GB/s of each connection over an interface, its best repeat; 0: no connection."""
        return tuple(
            max(row.rates, default=0.0) for row in self.rates if row.interface == interface
        )
