"""The start of the ranks, before their first training step."""

from __future__ import annotations

from ddoctor.evidence.training import RankStart, Starts
from ddoctor.recorder.recorded import Facts
from ddoctor.training.messages import Record
from ddoctor.training.run import Run

MIB = 2**20


def starts(run: Run) -> Starts:
    """The starts of the ranks whose script wrote facts."""
    return Starts(ranks=tuple(_start(*one) for one in run.facts))


def _start(record: Record, facts: Facts) -> RankStart:
    last = facts.places[facts.samples[-1][-1]] if facts.samples and not record.done else None
    return RankStart(
        rank=record.rank,
        host=record.host,
        grown=round(facts.grown * MIB),
        memory=record.memory,
        fsdp=facts.fsdp,
        place=f"{last.file}:{last.line}" if last is not None else "",
        text=last.text if last is not None else "",
        inner=last.inner if last is not None else "",
    )
