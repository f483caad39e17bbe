"""How the ranks got ready, before they trained."""

from __future__ import annotations

from ddoctor.evidence.training import RankStart, Starts
from ddoctor.recorder.recorded import Facts
from ddoctor.training.messages import Record
from ddoctor.training.run import Run

MIB = 2**20


def starts(run: Run) -> Starts:
    """Of the ranks whose script wrote something down."""
    return Starts(ranks=tuple(_start(*one) for one in run.facts))


def _start(record: Record, facts: Facts) -> RankStart:
    stood = facts.places[facts.samples[-1][2]] if facts.samples and not record.done else None
    return RankStart(
        rank=record.rank,
        host=record.host,
        grown=round(facts.grown * MIB),
        memory=record.memory,
        fsdp=facts.fsdp,
        place=f"{stood.file}:{stood.line}" if stood is not None else "",
        text=stood.text if stood is not None else "",
        inner=stood.inner if stood is not None else "",
    )
