"""What setting a variable did: the same figure measured without it and with it, in turns."""

from __future__ import annotations

from statistics import median
from typing import ClassVar

from ddoctor.evidence.section import Part, Section

# A published detector asks for 10 % before it believes a change (GREYHOUND, ATC'25).
GAIN = 1.10


class ArmTurn(Part, frozen=True, kw_only=True):
    """All ranks, started anew, measured once."""

    rate: float | None = None
    """GB/s, bus bandwidth of an all-reduce over all ranks; None: they did not get that far."""
    failure: str = ""
    """Why not."""


class ControlArm(Part, frozen=True, kw_only=True):
    """Turns without and with a change of the environment, one after the other: A B A B."""

    environment: tuple[str, ...]
    """NAME=value, or NAME alone where it was removed."""
    hosts: tuple[str, ...] = ()
    """Where it was changed; empty: everywhere."""
    bytes: int
    """Of the all-reduce: the largest size that every turn measured; 0: there is none."""
    without: tuple[ArmTurn, ...]
    with_it: tuple[ArmTurn, ...]

    @property
    def before(self) -> float:
        """GB/s without the change, the median of the turns; 0: it did not work."""
        return _median(self.without)

    @property
    def after(self) -> float:
        """GB/s with the change, the median of the turns; 0: it did not work."""
        return _median(self.with_it)

    @property
    def failure(self) -> str:
        """Why a turn with the change did not come to a figure; empty: all did."""
        return next((turn.failure for turn in self.with_it if turn.rate is None), "")

    @property
    def gained(self) -> bool:
        """Whether every turn with the change was faster, by far, than every one without."""
        if not self.with_it or self.failure:
            return False
        best = max((turn.rate or 0.0 for turn in self.without), default=0.0)
        return min(turn.rate or 0.0 for turn in self.with_it) > GAIN * best


class ControlArms(Section, frozen=True, kw_only=True):
    """All changes that were tried."""

    between_hosts: ClassVar[bool] = True

    arms: tuple[ControlArm, ...]

    def of(self, environment: tuple[str, ...], hosts: tuple[str, ...]) -> ControlArm | None:
        """What became of a change on these hosts; None: it was not tried."""
        return next(
            (one for one in self.arms if (one.environment, one.hosts) == (environment, hosts)),
            None,
        )


def _median(turns: tuple[ArmTurn, ...]) -> float:
    return median(turn.rate or 0.0 for turn in turns) if turns else 0.0
