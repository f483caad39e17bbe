"""How fast the ends of each pair send to one another, and how fast each rank works alone."""

from __future__ import annotations

from typing import ClassVar

from ddoctor.evidence.probes import RankPlace
from ddoctor.evidence.section import Part, Section


class End(Part, frozen=True, kw_only=True):
    """A rank that takes part: one of each host, or all of a single host."""

    place: RankPlace
    rail: int = 0
    """The index of its NIC among those of its host: equal ones meet in the same switches."""


class Flow(Part, frozen=True, kw_only=True):
    """One direction between two ends."""

    sender: int
    """The rank that sends."""
    receiver: int
    bytes: int
    """Of each timed transfer."""
    rates: tuple[float, ...]
    """GB/s (1e9 bytes) of each repeat, to the arrival of the receiver's answer."""


class LocalWork(Part, frozen=True, kw_only=True):
    """The same work on one CPU, done by one rank again and again, without the network."""

    place: RankPlace
    seconds: tuple[float, ...]
    """Of each repeat; the first ones of all ranks belong together, and so on."""
    cpu: tuple[float, ...]
    """Of each repeat, the part of the time in which the rank was on a CPU, 0 to 1."""
    queued: tuple[float, ...] = ()
    """Of each repeat, the part in which it waited in the kernel's run queue; empty: not told."""


class Pairs(Section, frozen=True, kw_only=True):
    """Transfers between disjoint pairs, both directions on their own, and the work of each rank."""

    probe: ClassVar[str] = "pairs"
    between_hosts: ClassVar[bool] = True

    backend: str
    ends: tuple[End, ...]
    flows: tuple[Flow, ...]
    transport: str | None = None
    """As NCCL's own log names it: P2P/CUMEM, NET/IB, NET/Socket, …; None: not told."""
    work: tuple[LocalWork, ...] = ()
    rounds: int = 0
    """In each of them every end had one partner at most."""
