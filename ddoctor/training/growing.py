"""`run --memory`: run the script again with growing micro-batches.

Running out of GPU memory ends the script. Another turn, which begins at the largest size that fits,
then measures the missing quantities, at least the rates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from ddoctor.evidence.memory_headroom import MemoryHeadroom, MemoryTrial, RankHeadroom
from ddoctor.evidence.section import Absence, Absent, Section, Unseen
from ddoctor.probing.sweep_request import SweepRequest
from ddoctor.training.lead import Lead
from ddoctor.training.messages import Record

MOST_TURNS = 4
# The recorder stops the script when it has grown the batches.
ENDLESS = 10**9
OUT_OF_MEMORY = "OutOfMemoryError"


def worth_it(records: Sequence[Record]) -> bool:
    """Whether the script ran without an error, or failed only by running out of memory."""
    endings = [one.ending.exception for one in records]
    return not any(endings) or OUT_OF_MEMORY in endings


def grow(
    leader: Lead, request: SweepRequest, seconds: float, started: Callable[[str], None]
) -> Section:
    """Run the memory sweep; return its section, or an absence with the reason."""
    found: MemoryHeadroom | None = None
    for turn in range(MOST_TURNS):
        started("rerunning the script with growing micro-batches")
        run = leader.again((), ENDLESS, seconds, request)
        records = run.records
        seen = _seen(records)
        if seen is None:
            break
        found = seen if found is None else _joined(found, seen)
        short = _short(records)
        if not short:
            if not all(record.leaving for record in records) or run.limit:
                found = _unfinished(found, _why(records))
            return found
        too_large = _failed(found.trials)
        if turn + 2 == MOST_TURNS:
            # The rates are still missing: do not risk running out of memory again.
            too_large.add(found.largest + 1)
        request = replace(
            request, micro_batch=found.largest or None, too_large=tuple(sorted(too_large))
        )
    if found is not None:
        return found
    why = _why(records) or run.limit or "the script ended before the sweep"
    return Absent(
        sections=(Absence(section=MemoryHeadroom.label(), why=why, crashed=True),),
    )


def _failed(trials: Sequence[MemoryTrial]) -> set[int]:
    return {one.micro_batch for one in trials if one.outcome != "fits"}


def _short(records: Sequence[Record]) -> dict[int, int]:
    """The size at which each rank ran out of memory, by rank."""
    return {
        record.rank: record.grown.trying
        for record in records
        if record.grown is not None and record.grown.trying is not None
        if record.ending.exception == OUT_OF_MEMORY
    }


def _seen(records: Sequence[Record]) -> MemoryHeadroom | None:
    """The sweep that the ranks recorded, with the size at which some ran out of memory."""
    written = [one.grown.headroom for one in records if one.grown is not None]
    known = [one for one in written if one is not None]
    if not known:
        return None
    latest = max(known, key=lambda one: (len(one.trials), len(one.rates)))
    short = _short(records)
    if not short:
        return latest
    size = max(short.values())
    trial = MemoryTrial(
        micro_batch=size, outcome="out-of-memory", ranks=tuple(short), exchange=True
    )
    return replace(
        latest,
        too_large=min(size, latest.too_large or size),
        trials=(*latest.trials, trial),
        stopped="",
        foretold=None,
    )


def _joined(before: MemoryHeadroom, after: MemoryHeadroom) -> MemoryHeadroom:
    """Join the sweeps of two turns."""
    trials = (*before.trials, *after.trials)
    rates = {one.micro_batch: one for one in (*before.rates, *after.rates)}
    return replace(
        after,
        largest=max(before.largest, after.largest),
        safe=max(before.safe, after.safe),
        # From the trials only: the later turn assumes that further sizes are too large.
        too_large=min(_failed(trials), default=None),
        trials=trials,
        ranks=tuple(map(_rank, before.ranks, after.ranks)),
        rates=tuple(rates[size] for size in sorted(rates)),
    )


def _rank(before: RankHeadroom, after: RankHeadroom) -> RankHeadroom:
    uses = {one.micro_batch: one for one in (*before.uses, *after.uses)}
    line = after if after.fixed is not None else before
    return replace(
        after,
        fixed=line.fixed,
        per_sample=line.per_sample,
        uses=tuple(uses[size] for size in sorted(uses)),
    )


def _unfinished(found: MemoryHeadroom, why: str) -> MemoryHeadroom:
    unseen = (Unseen(what=f"more than {found.largest} samples at a time", why=why),) if why else ()
    if found.too_large is not None:
        return replace(found, unseen=unseen)
    return replace(found, unseen=unseen, stopped="script")


def _why(records: Sequence[Record]) -> str:
    for record in records:
        if record.grown is not None and record.grown.why:
            return record.grown.why
    failed = (one.ending for one in records if one.ending.exception)
    return next((f"{one.exception}: {one.message[:200]}" for one in failed), "")
