"""The head of every report: what was examined and measured, in a few lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from ddoctor.evidence.burn import Burn
from ddoctor.evidence.host import Memory
from ddoctor.evidence.probes import (
    AllReduce,
    HostToDevice,
    Matmul,
    MemoryBandwidth,
    RankRate,
    StorageRead,
    SweepPoint,
)
from ddoctor.evidence.section import Evidence
from ddoctor.report import expectation, headroom, live, network_rates, plan, training
from ddoctor.report.expectation import APART
from ddoctor.report.heat import Heat, heats
from ddoctor.report.machine import ALIKE, MACHINE
from ddoctor.report.places import MANY, hosts, listed, place_name
from ddoctor.report.wording import counted, quantity, size


@dataclass(frozen=True, kw_only=True)
class Fact:
    """One line: a label and its value."""

    label: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One kind of rate, measured on every rank."""

    label: str
    unit: str
    rates: tuple[RankRate, ...]
    detail: str = ""
    published: float | None = None
    """The published rate of this GPU model."""

    @property
    def median(self) -> float:
        return median(row.rate for row in self.rates)

    @property
    def slowest(self) -> RankRate:
        return min(self.rates, key=lambda row: row.rate)

    def __str__(self) -> str:
        text = quantity(self.median, self.unit) + (f" {self.detail}" if self.detail else "")
        if self.published is not None:
            text += f" (published: {quantity(self.published)})"
        if len(self.rates) == 1:
            return text
        least, most = quantity(self.slowest.rate), quantity(max(row.rate for row in self.rates))
        spread = f" ({least} to {most})" if least != most else ""
        text += f", median of {len(self.rates)}{spread}"
        if self.slowest.rate < APART * self.median:
            several = len({row.place.host for row in self.rates}) > 1
            text += f", slowest {place_name(self.slowest.place, with_host=several)}"
        return text


GROUPS = 4
"""Hosts that differ take at most this many lines."""

SLOWEST = 3
"""At most this many slow links are named."""

SWEEPS = 3
"""At most this many all-reduces are shown, if hosts were measured one by one."""


def facts(evidence: Evidence) -> tuple[Fact, ...]:
    """Return the head of a report: the machines, the training run, then the measurements."""
    rows = (*plan.seen(evidence), *live.seen(evidence), *training.rows(evidence))
    recorded = (Fact(label=label, text=text) for label, text in rows)
    return (*_machines(evidence), *recorded, *_measured(evidence))


def comparisons(evidence: Evidence) -> tuple[Comparison, ...]:
    """Return every kind of rate that was measured on each rank, over all hosts."""
    matmuls = evidence.all(Matmul)
    copies = evidence.all(HostToDevice)
    computed = tuple(row for section in matmuls for row in section.rates)
    moved = tuple(row for section in evidence.all(MemoryBandwidth) for row in section.rates)
    burns = evidence.all(Burn)
    gpu = expectation.model(row.place for row in (*computed, *moved))
    dtypes = sorted({section.dtype for section in matmuls})
    found = (
        Comparison(
            label="matmul",
            unit="TFLOP/s",
            rates=computed,
            detail=listed(dtypes),
            published=gpu.achievable if gpu and dtypes == ["bfloat16"] else None,
        ),
        Comparison(
            label="burn",
            unit="TFLOP/s",
            rates=tuple(rank.sustained for section in burns for rank in section.ranks),
            detail=listed(sorted({f"{one.dtype} for {one.seconds:.0f} s" for one in burns})),
        ),
        Comparison(
            label="memory copy",
            unit="GB/s",
            rates=moved,
            published=gpu.copied if gpu else None,
        ),
        Comparison(
            label="host to device",
            unit="GB/s",
            rates=tuple(row for section in copies for row in section.to_device),
        ),
        Comparison(
            label="device to host",
            unit="GB/s",
            rates=tuple(row for section in copies for row in section.to_host),
        ),
    )
    return tuple(comparison for comparison in found if comparison.rates)


def _machines(evidence: Evidence) -> Iterator[Fact]:
    names = evidence.hosts
    if names:
        yield Fact(label="host" if len(names) == 1 else "hosts", text=hosts(names))
    for label, of in MACHINE:
        yield from _same_or_each(label, evidence, of if len(names) == 1 else ALIKE.get(label, of))
    memories = [one for one in evidence.all(Memory) if one.host]
    if len(memories) > 1:
        least = min(memories, key=lambda one: one.available)
        most = max(memories, key=lambda one: one.available)
        yield Fact(
            label="free memory",
            text=f"{size(least.available)} ({least.host}) to {size(most.available)}",
        )


def _same_or_each(
    label: str, evidence: Evidence, of: Callable[[Evidence, str], str]
) -> Iterator[Fact]:
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
        yield Fact(label=label, text=text + (f" ({_group(names)})" if len(groups) > 1 else ""))
    if len(shown) < len(told):
        rest = [host for _, names in told[len(shown) :] for host in names]
        yield Fact(label=label, text=f"in {len(told) - len(shown)} other ways on {hosts(rest)}")


def _group(names: Sequence[str]) -> str:
    return listed(names) if len(names) <= MANY else f"{len(names)} hosts"


def most_telling(evidence: Evidence) -> tuple[AllReduce, ...]:
    """Return the all-reduces; if each of many hosts has one, the slowest ones."""
    found = [section for section in evidence.all(AllReduce) if section.points]
    found.sort(key=lambda section: _largest(section).bus_bandwidth)
    return tuple(sorted(found[:SWEEPS], key=lambda section: section.host))


def _largest(section: AllReduce) -> SweepPoint:
    return max(section.points, key=lambda point: point.bytes)


def _measured(evidence: Evidence) -> Iterator[Fact]:
    every = [section for section in evidence.all(AllReduce) if section.points]
    shown = most_telling(evidence)
    if len(every) > len(shown):
        usual = median(_largest(section).bus_bandwidth for section in every)
        text = f"median of {len(every)} hosts {quantity(usual, 'GB/s')} busbw; the slowest:"
        yield Fact(label="all-reduce", text=text)
    for section in shown:
        first, last = min(section.points, key=lambda point: point.bytes), _largest(section)
        healthy = expectation.all_reduce(section)
        due = f" (healthy: {healthy.text})" if healthy else ""
        on = f" on {section.host}" if len(every) > 1 and section.host else ""
        yield Fact(
            label="all-reduce",
            text=f"{quantity(last.bus_bandwidth, 'GB/s')} busbw at {size(last.bytes)}{due}, "
            f"{quantity(first.p50 * 1e6, 'µs')} at {size(first.bytes)}; "
            f"{counted(len(section.ranks), 'rank')}, {section.backend}{on}",
        )
    for label, text in (*network_rates.rows(evidence), *headroom.rows(evidence)):
        yield Fact(label=label, text=text)
    for heat in heats(evidence):
        yield from _links(heat)
    for comparison in comparisons(evidence):
        yield Fact(label=comparison.label, text=str(comparison))
    yield from _storage(evidence.all(StorageRead))


def _links(heat: Heat) -> Iterator[Fact]:
    rates = [link.rate for link in heat.links.values()]
    yield Fact(
        label="pair by pair",
        text=f"{quantity(heat.usual, 'GB/s')}, median of {counted(len(rates), 'direction')} "
        f"between {heat.total} ({quantity(min(rates))} to {quantity(max(rates))})",
    )
    slow = heat.slow
    for link in slow[:SLOWEST]:
        yield Fact(label="slowest", text=str(link))
    if len(slow) > SLOWEST:
        yield Fact(label="slowest", text=f"and {len(slow) - SLOWEST} more")


def _storage(every: Sequence[StorageRead]) -> Iterator[Fact]:
    together = max((one.readers for one in every), default=1)
    at_once = f", {together} hosts at once" if together > 1 else ""
    for storage in every if len(every) <= GROUPS else ():
        parts = (
            quantity(storage.sequential, "MB/s in one stream") if storage.sequential else "",
            quantity(storage.small_files, "small files/s") if storage.small_files else "",
        )
        cached = ", from the page cache" if storage.cold is False else ""
        on = f" on {storage.host}" if len(every) > 1 else ""
        yield Fact(
            label="storage",
            text=f"{', '.join(filter(None, parts))} from {storage.path}{cached}{on}{at_once}",
        )
    if len(every) > GROUPS:
        streams = [(one.sequential, one.host) for one in every if one.sequential]
        files = [(one.small_files, one.host) for one in every if one.small_files]
        for unit, found in (("MB/s in one stream", streams), ("small files/s", files)):
            if found:
                usual, (least, slowest) = median(rate for rate, _ in found), min(found)
                yield Fact(
                    label="storage",
                    text=f"{quantity(usual, unit)}, median of {len(found)} hosts, least "
                    f"{quantity(least)} on {slowest}{at_once}",
                )
