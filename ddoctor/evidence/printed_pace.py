"""How fast a training steps, as it printed it."""

from __future__ import annotations

from typing import Annotated

import msgspec

from ddoctor.evidence.section import Part, Section


class PaceSeries(Part, frozen=True, kw_only=True):
    """One figure of many lines of a file, in their order."""

    figure: str
    """As the lines name it, say ``s/it`` or ``elapsed time per iteration (ms)``."""
    file: str
    rank: int | None = None
    """None: the lines do not say it."""
    per_second: bool
    """Whether it counts what is done in a second; otherwise the time of a step."""
    lines: tuple[int, ...]
    """Number of each line."""
    steps: tuple[int | None, ...]
    """Number of the step that each line names; None: it names none."""
    values: tuple[Annotated[float, msgspec.Meta(gt=0)], ...]
    """As printed."""

    @property
    def slowness(self) -> tuple[float, ...]:
        """Each value as a time: more is slower."""
        return tuple(1 / one for one in self.values) if self.per_second else self.values


class PrintedPace(Section, frozen=True, kw_only=True):
    """The pace of a run by its logs."""

    commands = ("diagnose",)
    obtained_by = "ddoctor diagnose LOG"

    series: tuple[PaceSeries, ...]
