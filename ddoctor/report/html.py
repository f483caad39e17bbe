"""The report as one self-contained HTML page, to attach to a ticket."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING

from ddoctor.evidence.gpus import Gpus
from ddoctor.evidence.probes import (
    AllReduce,
    HostToDevice,
    Matmul,
    MemoryBandwidth,
    RankPlace,
    SweepPoint,
)
from ddoctor.evidence.section import Evidence
from ddoctor.models import Report, Severity
from ddoctor.report import charts, expectation, fitness, wording
from ddoctor.report.details import Grid, details
from ddoctor.report.facts import APART, Comparison, comparisons, facts, place_name
from ddoctor.report.hosts import gpu_rows, holders, host_rows

if TYPE_CHECKING:
    from markupsafe import Markup

SHOWN_ELSEWHERE = (AllReduce, Gpus, HostToDevice, Matmul, MemoryBandwidth)
"""Sections that have a place of their own on the page."""

BAR_MARGIN = 1.1
"""Room beyond the fastest rank, so that the mark of the median is seen against it."""


def render(report: Report, evidence: Evidence) -> str:
    """The report as an HTML page that makes no request and runs no script but its own."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FunctionLoader(_file),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["prose"] = _prose
    script = _file("page.js.j2")
    page = environment.get_template("page.html.j2").render(
        report=report,
        evidence=evidence,
        words=wording,
        Grid=Grid,
        style=Markup(_file("page.css.j2")),
        script=Markup(script),
        script_hash=b64encode(sha256(script.encode()).digest()).decode(),
        serious=[f for f in report.findings if f.severity > Severity.NOTE],
        notes=[f for f in report.findings if f.severity is Severity.NOTE],
        facts=facts(evidence),
        fitness=fitness.fit(report),
        sweeps=[_sweep(section) for section in evidence.all(AllReduce) if section.points],
        ranks=_ranks(comparisons(evidence)),
        gpus=[
            (section.host, section.gpus, gpu_rows(section), holders(section))
            for section in evidence.all(Gpus)
            if section.gpus
        ],
        host_rows=host_rows(evidence),
        details={host: details(evidence, host, SHOWN_ELSEWHERE) for host in evidence.hosts},
        left_out=wording.left_out(report, evidence),
        unseen=wording.unseen(evidence),
    )
    return wording.tamed(page)


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """An all-reduce over sizes, drawn and in figures."""

    section: AllReduce
    wide: Markup
    narrow: Markup
    points: tuple[SweepPoint, ...]
    healthy: expectation.Healthy | None


@dataclass(frozen=True, kw_only=True)
class Rate:
    """What one rank reached."""

    text: str
    share: float
    """Of the length of the bar."""
    behind: float | None = None
    """Share of the median that is missing, where the rank stands apart from the others."""


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """All rates of all ranks: a row per rank, a column per comparison."""

    comparisons: tuple[Comparison, ...]
    medians: tuple[Rate, ...]
    rows: tuple[tuple[str, tuple[Rate | None, ...]], ...]


def _sweep(section: AllReduce) -> Sweep:
    from markupsafe import Markup

    points = tuple(sorted(section.points, key=lambda point: point.bytes))
    healthy = expectation.all_reduce(section)
    wide, narrow = (
        Markup(
            charts.bandwidth(
                [(point.bytes, point.bus_bandwidth) for point in points],
                healthy.points if healthy else (),
                pixels,
            )
        )
        for pixels in (charts.WIDE, charts.NARROW)
    )
    return Sweep(section=section, wide=wide, narrow=narrow, points=points, healthy=healthy)


def _ranks(compared: tuple[Comparison, ...]) -> Ranks:
    places = {row.place.rank: row.place for comparison in compared for row in comparison.rates}
    several = len({place.host for place in places.values()}) > 1
    return Ranks(
        comparisons=compared,
        medians=tuple(_rate(comparison.median, comparison) for comparison in compared),
        rows=tuple(
            (
                place_name(place, with_host=several),
                tuple(_of(place, comparison) for comparison in compared),
            )
            for _, place in sorted(places.items())
        ),
    )


def _of(place: RankPlace, comparison: Comparison) -> Rate | None:
    found = (row.rate for row in comparison.rates if row.place.rank == place.rank)
    rate = next(found, None)
    return None if rate is None else _rate(rate, comparison)


def _rate(rate: float, comparison: Comparison) -> Rate:
    longest = max(row.rate for row in comparison.rates) * BAR_MARGIN
    apart = rate < APART * comparison.median
    return Rate(
        text=wording.quantity(rate),
        share=rate / longest if longest else 0.0,
        behind=1 - rate / comparison.median if apart else None,
    )


def _file(name: str) -> str:
    return files("ddoctor.report").joinpath(name).read_text(encoding="utf-8")


def _prose(text: str) -> Markup:
    """Text whose `code` is set as code."""
    from markupsafe import Markup, escape

    parts = text.split("`")
    if len(parts) % 2 == 0:
        return escape(text)
    return Markup().join(
        Markup("<code>{}</code>").format(part) if number % 2 else escape(part)
        for number, part in enumerate(parts)
    )
