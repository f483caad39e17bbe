"""What the flight recorders of all ranks tell together: where they differ, who is waited for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from ddoctor.analysis import endings
from ddoctor.analysis.live_ranks import SHORTEST_SECONDS, LiveRankState, hung
from ddoctor.analysis.live_state import LiveState
from ddoctor.evidence.flight_records import Call, FlightRecords, GroupCalls, RankRecords
from ddoctor.models import Confidence, Observation

# To these all ranks bring equally much, by whichever name torch's libraries record them; to others,
# say all-to-all, they need not.
ALIKE = re.compile(
    r"_?(all_?reduce|broadcast|reduce|all_?gather(_into_tensor)?|reduce_scatter(_tensor)?)"
    r"(_base|_coalesced|_single)?",
    re.IGNORECASE,
)
RECORDER = "torch's flight recorder"


@dataclass(frozen=True, kw_only=True)
class Differing:
    """The first collective of a group, as far back as is recorded, to which ranks brought what
    does not go together."""

    group: str
    number: int
    brought: Mapping[str, Sequence[int]]
    """Who brought what: operation, number of elements, type, and the line where that is known."""
    same_call: bool
    """Whether at least it was the same operation, called by the same line."""
    place: str
    """That line; empty: not known, or not the same."""
    confidence: Confidence

    def __str__(self) -> str:
        calls = ", ".join(
            f"{endings.ranks(rows)} called {what}" for what, rows in self.brought.items()
        )
        return f"in collective {self.number} of the group {self.group}, {calls}"


@dataclass(frozen=True, kw_only=True)
class Awaited:
    """Ranks that have not called what the others of a group wait in."""

    group: str
    ranks: tuple[int, ...]
    waiting: tuple[int, ...]
    call: Call
    """That the others wait in."""
    last: Call | None
    """The last of that group that the first of these ranks has called."""


def differing(live: LiveState, records: Sequence[FlightRecords]) -> Differing | None:
    """Where ranks part in a run that stands still; None: nowhere, or it may get on."""
    if not stands_still(live, records):
        return None
    for group, rows in _groups(records).items():
        calls = {rank: {one.number: one for one in row.calls} for rank, row in rows.items()}
        # What is over everywhere did no harm.
        waited = max((one.number for row in rows.values() if (one := row.current)), default=0)
        for number in sorted({number for row in calls.values() for number in row}):
            met = {rank: row[number] for rank, row in calls.items() if number in row}
            if number <= waited and _differ(list(met.values())):
                return _differing(group, met, _places(met, rows, live), records)
    return None


def awaited(live: LiveState, records: Sequence[FlightRecords]) -> Awaited | None:
    """Who has not come to what the others wait in, and waits in nothing itself; None: nobody, or
    they may come yet."""
    if not stands_still(live, records):
        return None
    ranks = {one.rank: one for section in records for one in section.ranks}
    if any(one.age_seconds >= live.seconds for one in ranks.values()):
        return None
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
    """Whether nothing moved: by the stacks, or where there are none, because nothing was called
    during the whole look by ranks that wait for something called before, or use no CPU."""
    if live.hung:
        return True
    known = {one.rank: one for section in records for one in section.ranks}
    return bool(live.ranks) and all(
        one.seconds >= SHORTEST_SECONDS and (hung([one]) or _idle(one, known.get(one.rank)))
        for one in live.ranks
    )


def by_nccl(records: Sequence[FlightRecords] | None) -> Iterator[Observation]:
    """What NCCL's own service says, line by line."""
    lines = dict.fromkeys(line.strip() for section in records or () for line in section.nccl)
    for line in lines:
        yield Observation(name="NCCL says", value=line, source="NCCL RAS")


def named(call: Call) -> str:
    """Say ``all_reduce of 1000 Float``."""
    elements = sum(map(prod, call.sizes))
    types = ", ".join(dict.fromkeys(call.types))
    return f"{call.operation} of {elements} {types}" if call.sizes else call.operation


def _idle(one: LiveRankState, record: RankRecords | None) -> bool:
    if record is None or not one.seen.unseen or record.age_seconds >= one.seconds:
        return False
    return record.idle_seconds >= one.seconds and (record.waits or not one.moves)


def _groups(records: Sequence[FlightRecords]) -> Mapping[str, Mapping[int, GroupCalls]]:
    """Each process group, with what its ranks called; of one rank nothing can be told."""
    groups: dict[str, dict[int, GroupCalls]] = {}
    for section in records:
        for one in section.ranks:
            for row in one.groups:
                groups.setdefault(row.group, {})[one.rank] = row
    return {group: rows for group, rows in groups.items() if len(rows) > 1}


def _differ(calls: Sequence[Call]) -> bool:
    if len({one.operation for one in calls}) > 1:
        return True
    return ALIKE.fullmatch(calls[0].operation) is not None and len(set(map(named, calls))) > 1


def _differing(
    group: str,
    met: Mapping[int, Call],
    places: Mapping[int, str],
    records: Sequence[FlightRecords],
) -> Differing:
    brought: dict[str, list[int]] = {}
    for rank, call in sorted(met.items()):
        at = f" at {places[rank]}" if rank in places else ""
        brought.setdefault(f"{named(call)}{at}", []).append(rank)
    operations = {one.operation for one in met.values()}
    lines = set(places.values())
    same = len(operations) == 1 and len(lines) < 2
    # Another job of the same user may have written a file of that name.
    own = all(one.told_by == "control socket" for section in records for one in section.ranks)
    # Of the same operation it takes a line to tell the same call from another one.
    certain = own and (len(operations) > 1 or bool(lines))
    return Differing(
        group=group,
        number=next(iter(met.values())).number,
        brought=brought,
        same_call=same,
        place=lines.pop() if same and lines else "",
        confidence=Confidence.CERTAIN if certain else Confidence.LIKELY,
    )


def _places(
    met: Mapping[int, Call], rows: Mapping[int, GroupCalls], live: LiveState
) -> Mapping[int, str]:
    """The lines that called it, as recorded, or as seen of those who are still in it."""
    seen = {
        one.rank: one.place
        for one in live.ranks
        # A host that waits for its GPU does so at another line.
        if one.waits and not one.at_gpu and one.rank in met
        if rows[one.rank].current == met[one.rank]
    }
    kept = {rank: endings.place(one.line) for rank, one in met.items()}
    return {rank: place for rank in met if (place := kept[rank] or seen.get(rank, ""))}
