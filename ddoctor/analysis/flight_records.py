"""What the flight recorders of all ranks show together: differing calls, and missing ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from ddoctor.analysis import endings
from ddoctor.analysis.collective_mismatch import ALIKE, Brought, Mismatch
from ddoctor.analysis.live_ranks import SHORTEST_SECONDS, LiveRankState
from ddoctor.analysis.live_state import LiveState
from ddoctor.evidence.flight_records import (
    Call,
    FlightDumps,
    FlightRecords,
    GroupCalls,
    RankRecords,
)
from ddoctor.models import Confidence, Observation

RECORDER = "torch's flight recorder"


@dataclass(frozen=True, kw_only=True)
class Awaited:
    """Ranks that have not entered the collective in which the others of a group wait."""

    group: str
    ranks: tuple[int, ...]
    waiting: tuple[int, ...]
    call: Call
    """The collective that the others wait in."""
    last: Call | None
    """The last collective of that group that the first of these ranks called."""


def differing(live: LiveState, records: Sequence[FlightRecords]) -> Mismatch | None:
    """The collective in which the ranks differ; None: none, or the run may still move."""
    if not stands_still(live, records):
        return None
    ranks = [one for section in records for one in section.ranks]
    # A host that waits for its GPU does so at another line.
    seen = {one.rank: one.place for one in live.ranks if one.waits and not one.at_gpu}
    # Another job of the same user may have written a file with that name.
    own = all(one.told_by == "control socket" for one in ranks)
    return _first_difference(ranks, seen, own=own)


def difference_in(dumps: FlightDumps) -> Mismatch | None:
    """The collective in which the ranks of an ended run differ; None: none."""
    return _first_difference(dumps.ranks, {}, own=False)


def _first_difference(
    ranks: Sequence[RankRecords], seen: Mapping[int, str], *, own: bool
) -> Mismatch | None:
    for group, rows in _groups(ranks).items():
        calls = {rank: {one.number: one for one in row.calls} for rank, row in rows.items()}
        # A collective that all ranks completed did no harm.
        waited = max((one.number for row in rows.values() if (one := row.current)), default=0)
        for number in sorted({number for row in calls.values() for number in row}):
            met = {rank: row[number] for rank, row in calls.items() if number in row}
            if number <= waited and _differ(list(met.values())):
                return _mismatch(group, met, _places(met, rows, seen), own=own)
    return None


def awaited(live: LiveState, records: Sequence[FlightRecords]) -> Awaited | None:
    """The ranks that the others wait for, and that wait in no collective themselves.

    None: there are none, or they may still arrive.
    """
    if not stands_still(live, records):
        return None
    ranks = [one for section in records for one in section.ranks]
    if any(one.age_seconds >= live.seconds for one in ranks):
        return None
    return _first_absence(ranks)


def absence_in(dumps: FlightDumps) -> Awaited | None:
    """The ranks for which the others of an ended run waited; None: there are none."""
    return _first_absence(dumps.ranks)


def _first_absence(records: Sequence[RankRecords]) -> Awaited | None:
    ranks = {one.rank: one for one in records}
    for group, rows in _groups(records).items():
        waiting = {rank: call for rank, row in rows.items() if (call := row.current) is not None}
        if not waiting:
            continue
        call = min(waiting.values(), key=lambda one: one.number)
        behind = tuple(
            rank
            for rank, row in sorted(rows.items())
            if row.calls[-1].number < call.number and not ranks[rank].waits
        )
        if behind and len(behind) + len(waiting) == len(rows):
            return Awaited(
                group=group,
                ranks=behind,
                waiting=tuple(sorted(waiting)),
                call=call,
                last=rows[behind[0]].last,
            )
    return None


def stands_still(live: LiveState, records: Sequence[FlightRecords]) -> bool:
    """Whether nothing moved, by the stacks, or by the records of ranks without stacks.

    Such a rank called nothing during all samples, and waits in an earlier call or uses no CPU.
    """
    if live.hung:
        return True
    known = {one.rank: one for section in records for one in section.ranks}
    return bool(live.ranks) and all(
        one.seconds >= SHORTEST_SECONDS and (one.hung or _idle(one, known.get(one.rank)))
        for one in live.ranks
    )


def by_nccl(records: Sequence[FlightRecords] | None) -> Iterator[Observation]:
    """The lines that NCCL's own RAS service reports."""
    lines = dict.fromkeys(line.strip() for section in records or () for line in section.nccl)
    for line in lines:
        yield Observation(name="NCCL says", value=line, source="NCCL RAS")


def named(call: Call) -> str:
    """Return ``all_reduce of 1000 Float``."""
    return str(Brought(ranks=(), operation=call.operation, what=_what(call)))


def _what(call: Call) -> str:
    elements = sum(map(prod, call.sizes))
    return f"{elements} {', '.join(dict.fromkeys(call.types))}" if call.sizes else ""


def _idle(one: LiveRankState, record: RankRecords | None) -> bool:
    if record is None or not one.seen.unseen or record.age_seconds >= one.seconds:
        return False
    return record.idle_seconds >= one.seconds and (record.waits or not one.moves)


def _groups(ranks: Sequence[RankRecords]) -> Mapping[str, Mapping[int, GroupCalls]]:
    """The process groups with the calls of their ranks; a group of one rank shows nothing."""
    groups: dict[str, dict[int, GroupCalls]] = {}
    for one in ranks:
        for row in one.groups:
            groups.setdefault(row.group, {})[one.rank] = row
    return {group: rows for group, rows in groups.items() if len(rows) > 1}


def _differ(calls: Sequence[Call]) -> bool:
    if len({one.operation for one in calls}) > 1:
        return True
    return ALIKE.fullmatch(calls[0].operation) is not None and len(set(map(named, calls))) > 1


def _mismatch(
    group: str, met: Mapping[int, Call], places: Mapping[int, str], *, own: bool
) -> Mismatch:
    """The calls of one collective; ``own``: the ranks themselves handed out the records."""
    brought: dict[tuple[str, str, str], list[int]] = {}
    for rank, call in sorted(met.items()):
        key = (call.operation, _what(call), places.get(rank, ""))
        brought.setdefault(key, []).append(rank)
    # With the same operation, only the line separates one call from another.
    certain = own and (len({one.operation for one in met.values()}) > 1 or bool(places))
    return Mismatch(
        brought=tuple(
            Brought(ranks=tuple(ranks), operation=operation, what=what, place=place)
            for (operation, what, place), ranks in brought.items()
        ),
        told_by=RECORDER,
        detail=f"in collective {next(iter(met.values())).number} of the group {group}",
        confidence=Confidence.CERTAIN if certain else Confidence.LIKELY,
    )


def _places(
    met: Mapping[int, Call], rows: Mapping[int, GroupCalls], seen: Mapping[int, str]
) -> Mapping[int, str]:
    """The lines of the calls by rank, as recorded, or as ``seen`` of ranks still in the call."""
    still = {rank: seen.get(rank, "") for rank, one in met.items() if rows[rank].current == one}
    kept = {rank: endings.place(one.line) for rank, one in met.items()}
    return {rank: place for rank in met if (place := kept[rank] or still.get(rank, ""))}
