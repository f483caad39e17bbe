"""The head of every report: what was examined and measured, in a few lines."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import median
from typing import NamedTuple

from ddoctor.evidence.cluster_probes import ClockOffsets, Collectives, InterfaceRates, Scope, Sweep
from ddoctor.evidence.host import Memory
from ddoctor.evidence.memory_headroom import MARGIN, Longest, MemoryHeadroom, RankHeadroom
from ddoctor.evidence.probes import (
    AllReduce,
    StorageRead,
    SweepPoint,
)
from ddoctor.evidence.section import Evidence
from ddoctor.report import expectation, launch, live, memory, nccl, pace, plan, training
from ddoctor.report.heat import Heat, heats
from ddoctor.report.machine import ALIKE, MACHINE, Property
from ddoctor.report.places import MANY, hosts, listed, place_name, ranks
from ddoctor.report.ranks import comparisons
from ddoctor.report.wording import counted, quantity, size


class Fact(NamedTuple):
    """One line: a label and its value."""

    label: str
    text: str


GROUPS = 4
"""Hosts that differ take at most this many lines."""

SLOWEST = 3
"""At most this many slow links are named."""

SWEEPS = 3
"""At most this many all-reduces are shown, if hosts were measured one by one."""


SCOPES: dict[Scope, str] = {
    "all": "collectives",
    "across": "across hosts",
    "within": "within hosts",
}


STOPPED = {
    "host-memory": "the host has no more memory to simulate with",
    "time": "a step would take too long here",
    "sizes": "larger sizes were not tried",
    "data": "an epoch has no more samples per rank",
    "script": "the script had no more steps",
}
"""Why a sweep of the micro-batch ended without one that is too large."""

RANKS = 4
"""Of more ranks, only the one whose memory limits the others is shown."""


def facts(evidence: Evidence) -> tuple[Fact, ...]:
    """Return the head of a report: the launch, machines, the training run, measurements."""
    parts = (
        *(launch.starts, _machines, plan.seen, live.seen, nccl.choices, training.rows),
        pace.printed,
        *(memory.seen, _measured),
    )
    return tuple(Fact(label, text) for part in parts for label, text in part(evidence))


def _machines(evidence: Evidence) -> Iterator[tuple[str, str]]:
    names = evidence.hosts
    if names:
        yield ("host" if len(names) == 1 else "hosts"), hosts(names)
    for label, of in (MACHINE if len(names) == 1 else {**MACHINE, **ALIKE}).items():
        yield from _same_or_each(label, evidence, of)
    memories = [one for one in evidence.all(Memory) if one.host]
    if len(memories) > 1:
        least = min(memories, key=lambda one: one.available)
        most = max(memories, key=lambda one: one.available)
        yield (
            "free memory",
            f"{size(least.available)} ({least.host}) to {size(most.available)}",
        )


def _same_or_each(label: str, evidence: Evidence, of: Property) -> Iterator[tuple[str, str]]:
    """Yield one line if all hosts agree, else one for each group that does, the largest first.

    If there are many groups, the small ones share a line.
    """
    groups: dict[str, list[str]] = {}
    for host in evidence.hosts:
        groups.setdefault(of(evidence, host), []).append(host)
    told = sorted(
        ((text, names) for text, names in groups.items() if text), key=lambda group: -len(group[1])
    )
    shown = told if len(told) <= GROUPS else told[: GROUPS - 1]
    for text, names in shown:
        group = listed(names) if len(names) <= MANY else f"{len(names)} hosts"
        yield label, text + (f" ({group})" if len(groups) > 1 else "")
    if len(shown) < len(told):
        rest = [host for _, names in told[len(shown) :] for host in names]
        yield label, f"in {len(told) - len(shown)} other ways on {hosts(rest)}"


def most_telling(evidence: Evidence) -> tuple[AllReduce, ...]:
    """Return the all-reduces; if each of many hosts has one, the slowest ones."""
    found = [section for section in evidence.all(AllReduce) if section.points]
    found.sort(key=lambda section: _largest(section).bus_bandwidth)
    return tuple(sorted(found[:SWEEPS], key=lambda section: section.host))


def _largest(section: AllReduce | Sweep) -> SweepPoint:
    return max(section.points, key=lambda point: point.bytes)


def _measured(evidence: Evidence) -> Iterator[tuple[str, str]]:
    every = [section for section in evidence.all(AllReduce) if section.points]
    shown = most_telling(evidence)
    if len(every) > len(shown):
        usual = median(_largest(section).bus_bandwidth for section in every)
        median_of = f"median of {len(every)} hosts {quantity(usual, 'GB/s')} busbw"
        yield "all-reduce", f"{median_of}; the slowest:"
    for section in shown:
        first, last = min(section.points, key=lambda point: point.bytes), _largest(section)
        healthy = expectation.all_reduce(section)
        due = f" (healthy: {healthy.text})" if healthy else ""
        on = f" on {section.host}" if len(every) > 1 and section.host else ""
        yield (
            "all-reduce",
            f"{quantity(last.bus_bandwidth, 'GB/s')} busbw at {size(last.bytes)}{due}, "
            f"{quantity(first.p50 * 1e6, 'µs')} at {size(first.bytes)}; "
            f"{counted(len(section.ranks), 'rank')}, {section.backend}{on}",
        )
    for measured in evidence.all(Collectives):
        yield from _collectives(measured)
    yield from _network(evidence)
    yield from _headroom(evidence)
    for heat in heats(evidence):
        yield from _links(heat)
    for comparison in comparisons(evidence):
        yield comparison.label, str(comparison)
    yield from _storage(evidence.all(StorageRead))


def _network(evidence: Evidence) -> Iterator[tuple[str, str]]:
    for tried in evidence.all(InterfaceRates):
        names = dict.fromkeys(row.interface for row in tried.rates)
        slowest = (f"{name} {quantity(min(tried.of(name)), 'GB/s')}" for name in names)
        connections = counted(len(tried.rates) // max(1, len(names)), "connection")
        yield "plain TCP", f"{', '.join(slowest)}; slowest of {connections} each"
    for clocks in (one for one in evidence.all(ClockOffsets) if one.offsets):
        first = min(clocks.offsets, key=lambda one: one.offset)
        last = max(clocks.offsets, key=lambda one: one.offset)
        apart = quantity((last.offset - first.offset) * 1e3, "ms")
        unsure = quantity(max(one.uncertainty for one in clocks.offsets) * 1e3, "ms")
        yield "clocks", f"at most {apart} apart ({first.host} to {last.host}), ± {unsure}"


def _collectives(measured: Collectives) -> Iterator[tuple[str, str]]:
    """Yield the bus bandwidth of each at the largest size; of several hosts, the median."""
    for scope, label in SCOPES.items():
        rates: dict[str, list[float]] = defaultdict(list)
        for sweep in measured.sweeps:
            if sweep.scope == scope and sweep.points:
                rates[sweep.collective].append(_largest(sweep).bus_bandwidth)
        if rates:
            told = (f"{name} {quantity(median(found))}" for name, found in rates.items())
            yield label, f"{', '.join(told)} GB/s busbw"


def _links(heat: Heat) -> Iterator[tuple[str, str]]:
    rates = heat.links.values()
    yield (
        "pair by pair",
        f"{quantity(heat.usual, 'GB/s')}, median of {counted(len(rates), 'direction')} "
        f"between {heat.total} ({quantity(min(rates))} to {quantity(max(rates))})",
    )
    slow = heat.slow
    for link in slow[:SLOWEST]:
        yield "slowest", heat.text(link)
    if len(slow) > SLOWEST:
        yield "slowest", f"and {len(slow) - SLOWEST} more"


def _storage(every: Sequence[StorageRead]) -> Iterator[tuple[str, str]]:
    together = max((one.readers for one in every), default=1)
    at_once = f", {together} hosts at once" if together > 1 else ""
    for one in every if len(every) <= GROUPS else ():
        rates = {"MB/s in one stream": one.sequential, "small files/s": one.small_files}
        known = ", ".join(quantity(rate, unit) for unit, rate in rates.items() if rate)
        cached = ", from the page cache" if one.cold is False else ""
        on = f" on {one.host}" if len(every) > 1 else ""
        yield "storage", f"{known} from {one.path}{cached}{on}{at_once}"
    if len(every) > GROUPS:
        streams = [(one.sequential, one.host) for one in every if one.sequential]
        files = [(one.small_files, one.host) for one in every if one.small_files]
        for unit, found in (("MB/s in one stream", streams), ("small files/s", files)):
            if found:
                usual, (least, slowest) = median(rate for rate, _ in found), min(found)
                yield (
                    "storage",
                    f"{quantity(usual, unit)}, median of {len(found)} hosts, least "
                    f"{quantity(least)} on {slowest}{at_once}",
                )


def _headroom(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Yield how many samples fit, what each rank has left, and how fast they train."""
    for swept in evidence.all(MemoryHeadroom):
        spread = ", by FSDP" if swept.sharded and len(swept.ranks) > 1 else ""
        yield "workload", swept.workload + spread + (", on CPU tensors" if swept.played else "")
        yield "micro-batch", _sizes(swept)
        if swept.longest is not None:
            yield "sequence", _lengths(swept.longest)
        shown = swept.ranks if len(swept.ranks) <= RANKS else (swept.tightest,)
        for rank in shown:
            yield "memory", f"{place_name(rank.place)}: {_memory(rank, swept)}"
        sizes = [one.micro_batch for one in swept.rates]
        rates = [(number, rate) for number in sizes if (rate := swept.samples_per_second(number))]
        if rates:
            told = (f"{quantity(rate)} samples/s with {number}" for number, rate in rates)
            yield "throughput", ", ".join(told)


def _sizes(swept: MemoryHeadroom) -> str:
    now = f"; now {swept.current}" if swept.current is not None else ""
    trials = f"; {len({one.micro_batch for one in swept.trials})} sizes tried"
    if not swept.largest:
        return f"not one sample fits{now}"
    if swept.too_large is None:
        foretold = f", {swept.foretold} forecast" if swept.foretold is not None else ""
        most = f"{swept.largest} fit; {STOPPED.get(swept.stopped, '')}{foretold}"
    else:
        of_it = (one for one in swept.trials if one.micro_batch == swept.too_large)
        short = next((one for one in of_it if one.outcome != "fits"), None)
        thrashes = short is not None and short.outcome == "thrashes"
        why = "make the allocator thrash" if thrashes else "do not fit"
        fit = "at most" if swept.too_large == swept.largest + 1 else "fit"
        on = ranks(short.ranks) if short is not None else ""
        most = f"{swept.largest} {fit}, {swept.too_large} {why} {on}".rstrip()
    return f"{most}; {swept.safe} leave {MARGIN:.0%}{now}{trials}"


def _lengths(longest: Longest) -> str:
    each = f"{longest.samples} samples" if longest.samples > 1 else "one sample"
    if not longest.tokens:
        return f"not one token fits with {each}; now {longest.current}"
    if longest.too_long is None:
        most = f"{longest.tokens} tokens fit with {each}; {STOPPED.get(longest.stopped, '')}"
    else:
        most = f"{longest.tokens} tokens at most with {each}, {longest.too_long} do not fit"
    return f"{most}; now {longest.current}"


def _memory(rank: RankHeadroom, swept: MemoryHeadroom) -> str:
    at = swept.current if swept.current is not None and rank.use(swept.current) else swept.safe
    parts = [f"{size(rank.limit)} of {size(rank.total)}" if rank.others else size(rank.limit)]
    if rank.fixed is not None and rank.per_sample is not None:
        parts.append(f"{size(rank.fixed)} fixed and {size(rank.per_sample)} a sample")
    used, left = rank.use(at), rank.left(at)
    if used is not None and left is not None:
        unused = f", {size(used.unused)} of it in pieces" if used.unused else ""
        parts.append(f"with {at} {size(used.reserved)} taken{unused}, {size(left)} left")
    return "; ".join(parts)
