"""How the ranks of a cluster came together: who came, what each was doing, who reaches whom."""

from __future__ import annotations

from typing import ClassVar, Literal

from ddoctor.evidence.section import Part, Section


class JoiningRank(Part, frozen=True, kw_only=True):
    """A rank that is expected, as far as it is known."""

    rank: int
    host: str = ""
    """Empty: it never said where it runs, and torchrun did not tell either."""
    pid: int = 0
    local_rank: int | None = None
    world_size: int | None = None
    """What its own launcher told it."""
    address: str = ""
    """Its own address on the way to the store."""
    visible_gpus: int | None = None
    """How many GPUs torch offers to it; None: it never came."""
    visible_devices: str | None = None
    """Its CUDA_VISIBLE_DEVICES."""
    came: bool = False
    """It spoke to the others over the store."""
    joined: bool | None = None
    """It is in the process group; None: none was tried."""
    last: str = ""
    """What it was doing last."""
    age: float | None = None
    """Seconds since then."""
    status: str = ""
    """Process state as psutil names it; ``silent``: nothing was heard of it any more."""


class Joining(Section, frozen=True, kw_only=True):
    """All ranks that are expected, and whether they came."""

    between_hosts: ClassVar[bool] = True

    endpoint: str
    """HOST:PORT of the store over which the ranks meet."""
    limit: float
    """Seconds that were waited for."""
    world_size: int
    """As rank 0 was told."""
    ranks: tuple[JoiningRank, ...]
    """At least one row for each; several where processes share a rank."""
    launched: int | None = None
    """How many processes the scheduler says that it started; None: it does not say."""
    launched_by: str = ""
    """The variable that says so, say SLURM_NTASKS."""


Outcome = Literal["connected", "refused", "timeout", "no route", "unresolved", "failed"]


class Attempt(Part, frozen=True, kw_only=True):
    """One try to open a TCP connection."""

    host: str
    """The host that should answer."""
    address: str
    port: int
    outcome: Outcome
    error: str = ""
    """The system's own words."""


class Reach(Section, frozen=True, kw_only=True):
    """Which others this host reaches: connections to ports that those opened for the trial."""

    attempts: tuple[Attempt, ...]


class HostCaller(Part, frozen=True, kw_only=True):
    """What a host said of itself that came to the endpoint."""

    host: str
    node_rank: int | None = None
    """As its ``--node-rank`` says; None: it was given none."""
    expected: int
    """Its ``--nnodes``."""
    address: str = ""
    """Its own address on the way to the endpoint; empty: it has no way there."""
    endpoint_addresses: tuple[str, ...] = ()
    """What the endpoint's name resolves to there."""


class HostJoining(Section, frozen=True, kw_only=True):
    """How the hosts came together before any launcher was started, as this host saw it."""

    between_hosts: ClassVar[bool] = True

    endpoint: str
    limit: float
    """Seconds that were waited."""
    expected: int
    """Hosts, as this one was told by ``--nnodes``."""
    came: tuple[str, ...] = ()
    expected_elsewhere: tuple[int, ...] = ()
    """What the other hosts that came were told, where it differs."""
    way: Attempt | None = None
    """The last try to reach the endpoint; None: the store is on this host."""
    callers: tuple[HostCaller, ...] = ()
    """What each that came has told."""

    @classmethod
    def obtain(cls) -> str:
        """The command that makes it, where hosts do not come together."""
        return "ddoctor probe"
