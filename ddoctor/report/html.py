"""The report as one self-contained HTML page, to attach to a ticket."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING

from ddoctor.evidence.gpus import Gpus
from ddoctor.evidence.loading import LoaderCurve
from ddoctor.evidence.pairs import Pairs
from ddoctor.evidence.plan import Plan
from ddoctor.evidence.probes import (
    AllReduce,
    HostToDevice,
    Matmul,
    MemoryBandwidth,
    SweepPoint,
)
from ddoctor.evidence.section import Evidence
from ddoctor.evidence.steps import Lines, MemoryOverTime, Steps
from ddoctor.evidence.training import TrainingRun
from ddoctor.models import Report, Severity
from ddoctor.report import charts, expectation, fitness, live, plan, ranks, repeats, wording
from ddoctor.report.details import Detail, details
from ddoctor.report.facts import comparisons, facts, most_telling
from ddoctor.report.flame import flame
from ddoctor.report.heat import heats
from ddoctor.report.hosts import SIDE_BY_SIDE, close_up, gpu_rows, holders, host_table
from ddoctor.report.live_waits import waits
from ddoctor.report.step_breakdown import percent
from ddoctor.report.training_page import training

if TYPE_CHECKING:
    from markupsafe import Markup

SHOWN_ELSEWHERE = (
    AllReduce,
    Gpus,
    HostToDevice,
    Lines,
    LoaderCurve,
    Matmul,
    MemoryBandwidth,
    MemoryOverTime,
    Pairs,
    Plan,
    Steps,
)
"""Sections that the page shows elsewhere."""


def render(report: Report, evidence: Evidence) -> str:
    """Return the report as an HTML page that makes no request and runs only its inline script."""
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
    near = close_up(report, evidence)
    page = environment.get_template("page.html.j2").render(
        report=report,
        evidence=evidence,
        words=wording,
        style=Markup(_file("page.css.j2")),
        script=Markup(script),
        script_hash=b64encode(sha256(script.encode()).digest()).decode(),
        serious=[f for f in report.findings if f.severity > Severity.NOTE],
        repeats=repeats,
        facts=facts(evidence),
        fitness=fitness.fit(report),
        sweeps=[_sweep(section) for section in most_telling(evidence)],
        plans=[plan.table(section) for section in evidence.all(Plan)],
        live=live.rows(evidence),
        flame=flame(evidence),
        waits=waits(evidence),
        training=training(evidence),
        percent=percent,
        heats=heats(evidence),
        ranks=ranks.table(comparisons(evidence)),
        gpus=[
            (host, section.gpus, gpu_rows(section), holders(section))
            for host in near
            if (section := evidence.of(Gpus, host)) is not None and section.gpus
        ],
        hosts=host_table(evidence),
        details={
            **_details_of_run(evidence),
            **{
                f"All evidence from {host}": details(evidence, host, SHOWN_ELSEWHERE)
                for host in near
            },
        },
        left_out=wording.left_out(report, evidence),
        unseen=wording.unseen(evidence),
    )
    return wording.tamed(page)


def _details_of_run(evidence: Evidence) -> dict[str, dict[str, tuple[Detail, ...]]]:
    """Return the evidence of the whole run, if it is short enough to read."""
    if any(len(run.ranks) > SIDE_BY_SIDE for run in evidence.all(TrainingRun)):
        return {}
    recorded = Evidence(section for section in evidence if section.commands[0] == "run")
    found = details(recorded, "", SHOWN_ELSEWHERE)
    return {"All evidence of the run": found} if found else {}


@dataclass(frozen=True, kw_only=True)
class SweepChart:
    """An all-reduce over message sizes, as a chart and as figures."""

    section: AllReduce
    chart: charts.Chart
    points: tuple[SweepPoint, ...]
    healthy: expectation.Healthy | None


def _sweep(section: AllReduce) -> SweepChart:
    points = tuple(sorted(section.points, key=lambda point: point.bytes))
    healthy = expectation.all_reduce(section)
    measured = [(point.bytes, point.bus_bandwidth) for point in points]
    expected = healthy.points if healthy else ()
    return SweepChart(
        section=section,
        chart=charts.chart(lambda pixels: charts.bandwidth(measured, expected, pixels)),
        points=points,
        healthy=healthy,
    )


def _file(name: str) -> str:
    return files("ddoctor.report").joinpath(name).read_text(encoding="utf-8")


def _prose(text: str) -> Markup:
    """Return text as HTML, its backticked parts as code."""
    from markupsafe import Markup, escape

    parts = text.split("`")
    if len(parts) % 2 == 0:
        return escape(text)
    return Markup().join(
        Markup("<code>{}</code>").format(part) if number % 2 else escape(part)
        for number, part in enumerate(parts)
    )
