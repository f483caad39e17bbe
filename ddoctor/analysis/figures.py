"""All measured rates by name and place, to compare two runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, quantiles

from ddoctor.evidence.cluster_probes import Collectives, Pairs
from ddoctor.evidence.probes import (
    AllReduce,
    Burn,
    HostToDevice,
    Matmul,
    MemoryBandwidth,
    RankRate,
    StorageRead,
    SweepPoint,
)
from ddoctor.evidence.run_history import RunHistory
from ddoctor.evidence.section import Evidence, Section
from ddoctor.evidence.steps import Steps


@dataclass(frozen=True, kw_only=True)
class Figure:
    """What is measured, and where; equal figures of two runs can be compared."""

    name: str
    unit: str
    host: str = ""
    """Empty: it spans all hosts."""
    device: str = ""
    """A GPU, or a rank on a CPU."""
    bytes: int | None = None
    """The message size of a collective."""


@dataclass(frozen=True, kw_only=True)
class MeasuredFigure:
    """A rate in the unit of the figure; more is better."""

    rate: float
    best: float | None = None
    """The rate of the fastest round."""
    spread: float = 0.0
    """Interquartile range of the rounds."""


def figures(evidence: Evidence) -> Mapping[Figure, MeasuredFigure]:
    """All rates of these sections."""
    return dict(row for section in evidence for row in _figures(section))


def _figures(section: Section) -> Iterator[tuple[Figure, MeasuredFigure]]:
    match section:
        case AllReduce():
            name = f"all-reduce of {len(section.ranks)} ranks over {section.backend}"
            yield from _sweep(name, section.host, section.points)
        case Collectives():
            for sweep in section.sweeps:
                who = f"{len(sweep.ranks)} ranks over {section.backend}"
                name = f"{sweep.collective} of {who} ({sweep.scope})"
                yield from _sweep(name, sweep.host, sweep.points)
        case Pairs():
            yield from _flows(section)
        case Matmul():
            name = f"matmul {section.dtype} {section.size}"
            yield from _rates(name, "TFLOP/s", section.rates)
        case Burn():
            name = f"burn {section.dtype} {section.size}"
            yield from _rates(name, "TFLOP/s", (rank.sustained for rank in section.ranks))
        case MemoryBandwidth():
            yield from _rates("memory copy", "GB/s", section.rates)
        case HostToDevice():
            yield from _rates("host to device", "GB/s", section.to_device)
            yield from _rates("device to host", "GB/s", section.to_host)
        case StorageRead(cold=cold) if cold is not False:  # else the page cache was measured
            together = f", {section.readers} hosts at once" if section.readers > 1 else ""
            where = f"from {section.path}{together}"
            for name, unit, rate in (
                ("one stream", "MB/s", section.sequential),
                ("small files", "files/s", section.small_files),
            ):
                if rate is not None:
                    figure = Figure(name=f"{name} {where}", unit=unit, host=section.host)
                    yield figure, MeasuredFigure(rate=rate)
        case Steps() if section.count:
            each = zip(*(rank.seconds for rank in section.ranks), strict=False)
            rates = [1 / fmean(seconds) for seconds in each]
            name = f"training on {len(section.ranks)} rank{'s' * (len(section.ranks) != 1)}"
            yield (
                Figure(name=name, unit="steps/s", host=section.host),
                MeasuredFigure(rate=1 / section.step, best=max(rates), spread=_spread(rates)),
            )
        case RunHistory() if section.steps and section.seconds > 0:
            ranks = len(section.ranks)
            yield (
                Figure(
                    name=f"whole training on {ranks} rank{'s' * (ranks != 1)}",
                    unit="steps/s",
                    host=section.host,
                ),
                # Hangs, evaluations and checkpoints included.
                MeasuredFigure(rate=section.steps / section.seconds),
            )


def _sweep(
    name: str, host: str, points: Iterable[SweepPoint]
) -> Iterator[tuple[Figure, MeasuredFigure]]:
    for point in points:
        best = point.bus_bandwidth * point.p50 / point.minimum if point.minimum else None
        yield (
            Figure(name=name, unit="GB/s busbw", host=host, bytes=point.bytes),
            MeasuredFigure(rate=point.bus_bandwidth, best=best),
        )


def _flows(pairs: Pairs) -> Iterator[tuple[Figure, MeasuredFigure]]:
    places = {end.place.rank: end.place for end in pairs.ends}
    one_each = len({place.host for place in places.values()}) == len(places)
    for flow in (one for one in pairs.flows if one.rates):
        sender, receiver = places[flow.sender], places[flow.receiver]
        to = receiver.host if one_each else f"rank {receiver.rank}"
        figure = Figure(
            name=f"sending to {to} over {pairs.backend}",
            unit="GB/s",
            host=sender.host,
            device="" if one_each else f"rank {sender.rank}",
            bytes=flow.bytes,
        )
        yield figure, MeasuredFigure(rate=median(flow.rates), spread=_spread(flow.rates))


def _rates(
    name: str, unit: str, rates: Iterable[RankRate]
) -> Iterator[tuple[Figure, MeasuredFigure]]:
    for row in rates:
        place = row.place
        device = f"rank {place.rank}" if place.device == "cpu" else place.device
        yield (
            Figure(name=name, unit=unit, host=place.host, device=device),
            MeasuredFigure(rate=row.rate, spread=row.spread),
        )


def _spread(rates: Sequence[float]) -> float:
    low, _, high = quantiles(rates, n=4) if len(rates) > 1 else (0.0, 0.0, 0.0)
    return high - low
