"""Bandwidth between each pair of ranks, and the speed of each rank alone."""

from __future__ import annotations

from typing import ClassVar

from ddoctor.evidence.probes import RankPlace
from ddoctor.evidence.section import Part, Section
from ddoctor.models import Command


class End(Part, frozen=True, kw_only=True):
    """A participating rank: one of each host, or all of a single host."""

    place: RankPlace
    rail: int = 0
    """Index of its NIC on its host; NICs with equal index connect to the same switches."""


class Flow(Part, frozen=True, kw_only=True):
    """One direction between two ranks."""

    sender: int
    """The sending rank."""
    receiver: int
    bytes: int
    """Bytes of each timed transfer."""
    rates: tuple[float, ...]
    """GB/s (1e9 bytes) of each repeat, until the receiver's answer arrives."""


class LocalWork(Part, frozen=True, kw_only=True):
    """The same CPU work, repeated by one rank without the network."""

    place: RankPlace
    seconds: tuple[float, ...]
    """Seconds of each repeat; repeats with the same index run at the same time on all ranks."""
    cpu: tuple[float, ...]
    """Share of each repeat in which the rank was on a CPU, 0 to 1."""
    queued: tuple[float, ...] = ()
    """Share of each repeat spent in the kernel's run queue, 0 to 1; empty: not known."""


class Pairs(Section, frozen=True, kw_only=True):
    """Transfers between disjoint pairs, one direction at a time, and the work of each rank."""

    probe: ClassVar[str] = "pairs"
    commands: ClassVar[tuple[Command, ...]] = ("probe",)

    backend: str
    ends: tuple[End, ...]
    flows: tuple[Flow, ...]
    transport: str | None = None
    """Transport in NCCL's log: P2P/CUMEM, NET/IB, NET/Socket, …; None: not known."""
    work: tuple[LocalWork, ...] = ()
    rounds: int = 0
    """Number of rounds; in each of them every rank has at most one partner."""
