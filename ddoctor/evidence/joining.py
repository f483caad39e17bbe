"""How the ranks of a cluster connected: who arrived, what each did, who reaches whom."""

from __future__ import annotations

from typing import Literal

from ddoctor.evidence.section import Count, Part, ProbeSection


class JoiningRank(Part, frozen=True, kw_only=True):
    """An expected rank, and what is known about it."""

    rank: int
    host: str = ""
    """Host name; empty: neither the rank nor torchrun reported it."""
    pid: int = 0
    local_rank: int | None = None
    world_size: Count | None = None
    """WORLD_SIZE from its own launcher."""
    address: str = ""
    """Its own address on the route to the store."""
    visible_gpus: int | None = None
    """Number of GPUs that torch offers to it; None: it never arrived."""
    visible_devices: str | None = None
    """Its CUDA_VISIBLE_DEVICES."""
    came: bool = False
    """Whether it connected to the store."""
    joined: bool | None = None
    """Whether it is in the process group; None: no attempt was made."""
    last: str = ""
    """Its last reported activity."""
    age: float | None = None
    """Seconds since the activity that it reported last."""
    status: str = ""
    """Process state from psutil; ``silent``: it no longer reports."""


class Joining(ProbeSection, frozen=True, kw_only=True):
    """All expected ranks, and whether they arrived."""

    endpoint: str
    """HOST:PORT of the store that connects the ranks."""
    limit: float
    """Seconds that the ranks waited for each other."""
    world_size: Count
    """WORLD_SIZE of rank 0."""
    ranks: tuple[JoiningRank, ...]
    """At least one row per rank; several if processes share a rank."""
    launched: Count | None = None
    """Number of processes that the scheduler started; None: it does not say."""
    launched_by: str = ""
    """The variable with that number, say SLURM_NTASKS."""


Outcome = Literal["connected", "refused", "timeout", "no route", "unresolved", "failed"]


class Attempt(Part, frozen=True, kw_only=True):
    """One attempt to open a TCP connection."""

    host: str
    """The host that should answer."""
    address: str
    port: int
    outcome: Outcome
    error: str = ""
    """The operating system's error message."""


class Reach(ProbeSection, frozen=True, kw_only=True):
    """Which hosts this host reaches: test connections to ports that they opened."""

    attempts: tuple[Attempt, ...]


class HostCaller(Part, frozen=True, kw_only=True):
    """A host that reached the endpoint, and its own report."""

    host: str
    node_rank: int | None = None
    """Its ``--node-rank``; None: not set."""
    expected: Count
    """Its ``--nnodes``."""
    address: str = ""
    """Its own address on the route to the endpoint; empty: no route."""
    endpoint_addresses: tuple[str, ...] = ()
    """Addresses to which that host resolves the endpoint's name."""


class HostJoining(ProbeSection, frozen=True, kw_only=True):
    """How the hosts connected before any launcher started, as this host saw it."""

    obtained_by = "ddoctor probe"

    endpoint: str
    limit: float
    """Seconds that this host waited."""
    expected: Count
    """Number of hosts by this host's ``--nnodes``."""
    came: tuple[str, ...] = ()
    expected_elsewhere: tuple[Count, ...] = ()
    """``--nnodes`` of the hosts that arrived, where it differs."""
    way: Attempt | None = None
    """The last attempt to reach the endpoint; None: the store is on this host."""
    callers: tuple[HostCaller, ...] = ()
