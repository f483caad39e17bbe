"""Results of the probes that compare hosts or ranks, and of tried environment variables."""

from __future__ import annotations

from statistics import median
from typing import Literal

from ddoctor.evidence.probes import RankPlace, SweepPoint, WrongValue
from ddoctor.evidence.section import Part, ProbeSection, of_one_length


class ClockOffset(Part, frozen=True, kw_only=True):
    """A host's clock compared with that of the first rank's host, in seconds."""

    signed = frozenset({"offset"})

    host: str
    offset: float
    """Seconds; positive: this clock is ahead."""
    uncertainty: float
    """Seconds; the true offset lies within ± this value, half of the shortest round trip."""


class ClockOffsets(ProbeSection, frozen=True, kw_only=True):
    """The clocks of all hosts; the first rank's host is included, with offset 0."""

    probe = "clock_skew"

    offsets: tuple[ClockOffset, ...]


class InterfaceRate(Part, frozen=True, kw_only=True):
    """One TCP connection from one host to another, between interfaces of the same name."""

    interface: str
    sender: str
    receiver: str
    rates: tuple[float, ...] = ()
    """GB/s (1e9 bytes) of each repeat; empty: no connection."""
    error: str = ""


class InterfaceRates(ProbeSection, frozen=True, kw_only=True):
    """A ring of hosts, each sending to the next while it receives; without torch or NCCL."""

    probe = "interfaces"

    rates: tuple[InterfaceRate, ...]

    def of(self, interface: str) -> tuple[float, ...]:
        """GB/s of each connection over an interface, its best repeat; 0: no connection."""
        return tuple(
            max(row.rates, default=0.0) for row in self.rates if row.interface == interface
        )


Scope = Literal["within", "across", "all"]
"""within: one host; across: one rank of each host; all: all ranks."""

Collective = Literal["all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast"]


class Sweep(Part, frozen=True, kw_only=True):
    """One collective in one scope, over message sizes; bytes as nccl-tests count them."""

    collective: Collective
    scope: Scope
    host: str = ""
    """The host, for the scope ``within``."""
    ranks: tuple[int, ...]
    points: tuple[SweepPoint, ...] = ()
    wrong: tuple[WrongValue, ...] = ()
    skipped: str = ""
    """Why it was not measured: this backend lacks it."""


class Collectives(ProbeSection, frozen=True, kw_only=True):
    """Five collectives over message sizes, with verified values."""

    probe = "collectives"

    backend: str
    ranks: tuple[RankPlace, ...]
    sweeps: tuple[Sweep, ...]


class End(Part, frozen=True, kw_only=True):
    """A participating rank: one of each host, or all of a single host."""

    place: RankPlace
    rail: int = 0
    """Index of its NIC on its host; NICs with equal index connect to the same switches."""


class Flow(Part, frozen=True, kw_only=True):
    """One direction between two ranks."""

    sender: int
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

    def __post_init__(self) -> None:
        of_one_length(seconds=self.seconds, cpu=self.cpu, queued=self.queued)


class Pairs(ProbeSection, frozen=True, kw_only=True):
    """Transfers between disjoint pairs, one direction at a time, and the work of each rank."""

    probe = "pairs"

    backend: str
    ends: tuple[End, ...]
    flows: tuple[Flow, ...]
    transport: str | None = None
    """Transport in NCCL's log: P2P/CUMEM, NET/IB, NET/Socket, …; None: not known."""
    work: tuple[LocalWork, ...] = ()
    rounds: int = 0
    """Number of rounds; in each of them every rank has at most one partner."""

    def __post_init__(self) -> None:
        known = {end.place.rank for end in self.ends}
        strange = {rank for flow in self.flows for rank in (flow.sender, flow.receiver)} - known
        if strange:
            raise ValueError(f"flows of rank {min(strange)}, which is no end")


# A published detector asks for 10 % before it believes a change (GREYHOUND, ATC'25).
GAIN = 1.10


class ArmTurn(Part, frozen=True, kw_only=True):
    """One start of all ranks from scratch, measured once."""

    rate: float | None = None
    """Bus bandwidth of an all-reduce over all ranks, GB/s; None: the ranks did not reach it."""
    failure: str = ""
    """Why there is no rate; empty: there is one."""


class ControlArm(Part, frozen=True, kw_only=True):
    """Alternating measurements without and with a change of the environment: A B A B."""

    environment: tuple[str, ...]
    """NAME=value, or NAME alone where the variable was removed."""
    hosts: tuple[str, ...] = ()
    """Hosts on which the environment was changed; empty: all hosts."""
    bytes: int
    """Size of the all-reduce in bytes, the largest that every turn measured; 0: none."""
    without: tuple[ArmTurn, ...]
    with_it: tuple[ArmTurn, ...]

    @property
    def before(self) -> float:
        """GB/s without the change, the median of the turns; 0: it failed."""
        return _median(self.without)

    @property
    def after(self) -> float:
        """GB/s with the change, the median of the turns; 0: it failed."""
        return _median(self.with_it)

    @property
    def failure(self) -> str:
        """Why a turn with the change has no rate; empty: all have one."""
        return next((turn.failure for turn in self.with_it if turn.rate is None), "")

    @property
    def gained(self) -> bool:
        """Whether every turn with the change beats every turn without it by at least GAIN."""
        if not self.with_it or self.failure:
            return False
        best = max((turn.rate or 0.0 for turn in self.without), default=0.0)
        return min(turn.rate or 0.0 for turn in self.with_it) > GAIN * best


class ControlArms(ProbeSection, frozen=True, kw_only=True):
    """All changes of the environment that were tried."""

    arms: tuple[ControlArm, ...]

    def of(self, environment: tuple[str, ...], hosts: tuple[str, ...]) -> ControlArm | None:
        """The control arm of a change on these hosts; None: it was not tried."""
        return next(
            (one for one in self.arms if (one.environment, one.hosts) == (environment, hosts)),
            None,
        )


def _median(turns: tuple[ArmTurn, ...]) -> float:
    return median(turn.rate or 0.0 for turn in turns) if turns else 0.0
