"""How much a host had to do while the ranks on it were looked at."""

from __future__ import annotations

from typing import ClassVar

from ddoctor.evidence.section import Part, Section


class DiskTraffic(Part, frozen=True, kw_only=True):
    """One disk of the host, whoever used it."""

    name: str
    busy: float
    """In what part of the time it had something to do; 0 to 1."""
    read: float
    """MiB/s."""
    written: float
    """MiB/s."""


class InterfaceTraffic(Part, frozen=True, kw_only=True):
    """One network interface of the host, whoever used it."""

    name: str
    received: float
    """MiB/s."""
    sent: float
    """MiB/s."""


class HostRates(Section, frozen=True, kw_only=True):
    """Means over the look; what did nothing is left out."""

    of_attaching: ClassVar[bool] = True

    seconds: float
    load: float
    """Threads that ran, or wanted to, as a mean over the last minute."""
    disks: tuple[DiskTraffic, ...] = ()
    interfaces: tuple[InterfaceTraffic, ...] = ()
