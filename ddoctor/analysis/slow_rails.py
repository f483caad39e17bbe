"""Slow hosts, NICs and rails on hosts with several NICs, where rank i of each host is on rail i.

Each rail is judged alone, because a GPU far from its NIC is slower by design, on every host. Then
the rails are compared. A host is slow if it is slow on every rail, a NIC if it is slow on one rail.
If a whole rail is slow, its switches are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median

from ddoctor.analysis import slow_links
from ddoctor.analysis.slow_links import Analysis, Slow
from ddoctor.evidence.cluster_probes import End, Flow

# GPUs that reach their NIC over another socket or a shared PCIe switch are slower on every host by
# design. A broken rail falls to the next slower generation, which is half (InfiniBand's 400, 200
# and 100 Gbit/s).
RAIL_SLOWER_BY = 0.45
# Two hosts have one link on each rail.
A_RAIL_FROM = 3


def analyse(flows: Iterable[Flow], ends: Sequence[End]) -> Analysis:
    """Find what is slow on each rail, and which rails are slow."""
    flows = list(flows)
    rail_of = {end.place.rank: end.rail for end in ends}
    members: dict[int, list[Flow]] = {}
    for flow in flows:
        members.setdefault(rail_of[flow.sender], []).append(flow)
    if len(members) < 2:
        return slow_links.analyse(flows)
    rails = {rail: slow_links.analyse(members[rail]) for rail in sorted(members)}
    usual = median(one.usual for one in rails.values())
    whole = {
        rail
        for rail, one in rails.items()
        if one.usual
        < (1 - RAIL_SLOWER_BY)
        * median(other.usual for number, other in rails.items() if number != rail)
    }
    found = [_whole(members[rail]) for rail in sorted(whole)]
    sound = {rail: one for rail, one in rails.items() if rail not in whole}
    found += _together(sound, {end.place.rank: end.place.host for end in ends})
    share = min((one.floor / one.usual for one in rails.values() if one.usual), default=0.0)
    return Analysis(slow=tuple(found), usual=usual, floor=usual * share)


def _whole(flows: Sequence[Flow]) -> Slow:
    ranks = tuple(sorted({rank for flow in flows for rank in (flow.sender, flow.receiver)}))
    rates = [rate for flow in flows for rate in flow.rates]
    return Slow.of("rail" if len(ranks) >= A_RAIL_FROM else "link", ranks, rates)


def _together(rails: Mapping[int, Analysis], host: Mapping[int, str]) -> Iterator[Slow]:
    """One result for all ranks of what is slow on every rail in the same way."""
    alike: dict[tuple[str, ...], list[Slow]] = {}
    for analysis in rails.values():
        for slow in analysis.slow:
            key = (slow.what, *(host[rank] for rank in slow.ranks))
            alike.setdefault(key, []).append(slow)
    for rows in alike.values():
        if len(rows) < len(rails):
            yield from rows
            continue
        yield Slow(
            what=rows[0].what,
            ranks=tuple(rank for row in rows for rank in row.ranks),
            rate=max(row.rate for row in rows),
            repeats=sum(row.repeats for row in rows),
        )
