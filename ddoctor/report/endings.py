"""How each rank of a recorded run ended, if not all ended as requested."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddoctor.evidence.section import Evidence
from ddoctor.evidence.training import TrainingRun
from ddoctor.report.training import badly, reason, went
from ddoctor.report.wording import quantity

ALL = 16
"""At most this many ranks are shown; of more, the first of those that ended badly."""


@dataclass(frozen=True, kw_only=True)
class EndingRow:
    """One rank."""

    rank: int
    ended: str
    time: str
    steps: int
    doing: str
    """The phase or operation it was last in, unless ``ended`` names it."""
    reason: str
    line: str
    """The innermost line of the user's code on its stack."""


def endings(evidence: Evidence) -> tuple[EndingRow, ...]:
    """Return the ranks: first those that failed, then those that followed, then the others."""
    return tuple(one for run in evidence.all(TrainingRun) for one in _endings(run))


def _endings(run: TrainingRun) -> Iterator[EndingRow]:
    bad = badly(run)
    others = [one for one in run.ranks if one not in bad]
    for one in (*bad, *others)[: ALL if bad else 0]:
        frame = one.place
        yield EndingRow(
            rank=one.rank,
            ended=went(one),
            time=quantity(one.time, "s") if one.time else "",
            steps=one.steps,
            doing="" if one.outcome == "hung" else one.doing,
            reason=reason(one),
            line=f"{frame.file.rpartition('/')[2]}:{frame.line} {frame.text}".rstrip()
            if frame
            else "",
        )
