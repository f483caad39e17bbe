"""Load of a host's disks and network while ddoctor sampled the ranks."""

from __future__ import annotations

from typing import ClassVar

from ddoctor.evidence.section import Part, Section
from ddoctor.models import Command


class DiskTraffic(Part, frozen=True, kw_only=True):
    """One disk of the host, all processes together."""

    name: str
    busy: float
    """Share of the time in which it was busy, 0 to 1."""
    read: float
    """MiB/s."""
    written: float
    """MiB/s."""


class InterfaceTraffic(Part, frozen=True, kw_only=True):
    """One network interface of the host, all processes together."""

    name: str
    received: float
    """MiB/s."""
    sent: float
    """MiB/s."""


class HostRates(Section, frozen=True, kw_only=True):
    """Mean rates over the sampling; idle devices are left out."""

    commands: ClassVar[tuple[Command, ...]] = ("attach",)

    seconds: float
    """Duration of the sampling."""
    load: float
    """Threads that ran or were ready to run, mean of the last minute."""
    disks: tuple[DiskTraffic, ...] = ()
    interfaces: tuple[InterfaceTraffic, ...] = ()
