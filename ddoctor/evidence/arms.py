"""The effect of an environment variable: all-reduce measured without and with it, alternately."""

from __future__ import annotations

from statistics import median
from typing import ClassVar

from ddoctor.evidence.section import Part, Section
from ddoctor.models import Command

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


class ControlArms(Section, frozen=True, kw_only=True):
    """All changes of the environment that were tried."""

    commands: ClassVar[tuple[Command, ...]] = ("probe",)

    arms: tuple[ControlArm, ...]

    def of(self, environment: tuple[str, ...], hosts: tuple[str, ...]) -> ControlArm | None:
        """The control arm of a change on these hosts; None: it was not tried."""
        return next(
            (one for one in self.arms if (one.environment, one.hosts) == (environment, hosts)),
            None,
        )


def _median(turns: tuple[ArmTurn, ...]) -> float:
    return median(turn.rate or 0.0 for turn in turns) if turns else 0.0
