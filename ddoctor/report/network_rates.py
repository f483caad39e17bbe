"""The rates between ranks and hosts, one short row each, however many there are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from statistics import median

from ddoctor.evidence.clocks import ClockOffsets
from ddoctor.evidence.collectives import Collectives, Scope
from ddoctor.evidence.interface_rates import InterfaceRates
from ddoctor.evidence.section import Evidence
from ddoctor.report.wording import counted, quantity

LABELS: dict[Scope, str] = {
    "all": "collectives",
    "across": "across hosts",
    "within": "within hosts",
}


def rows(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Yield label and text of each line of the report's head."""
    for measured in evidence.all(Collectives):
        yield from _collectives(measured)
    for tried in evidence.all(InterfaceRates):
        names = dict.fromkeys(row.interface for row in tried.rates)
        slowest = (f"{name} {quantity(min(tried.of(name)), 'GB/s')}" for name in names)
        connections = counted(len(tried.rates) // max(1, len(names)), "connection")
        yield "plain TCP", f"{', '.join(slowest)}; slowest of {connections} each"
    for clocks in evidence.all(ClockOffsets):
        first = min(clocks.offsets, key=lambda one: one.offset)
        last = max(clocks.offsets, key=lambda one: one.offset)
        apart = quantity((last.offset - first.offset) * 1e3, "ms")
        unsure = quantity(max(one.uncertainty for one in clocks.offsets) * 1e3, "ms")
        yield "clocks", f"at most {apart} apart ({first.host} to {last.host}), ± {unsure}"


def _collectives(measured: Collectives) -> Iterator[tuple[str, str]]:
    """Yield the bus bandwidth of each at the largest size; of several hosts, the median."""
    for scope, label in LABELS.items():
        rates: dict[str, list[float]] = defaultdict(list)
        for sweep in measured.sweeps:
            if sweep.scope == scope and sweep.points:
                largest = max(sweep.points, key=lambda point: point.bytes)
                rates[sweep.collective].append(largest.bus_bandwidth)
        if rates:
            told = (f"{name} {quantity(median(found))}" for name, found in rates.items())
            yield label, f"{', '.join(told)} GB/s busbw"
