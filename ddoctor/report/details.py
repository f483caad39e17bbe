"""Any section of evidence as readable rows, whatever its fields are."""

from __future__ import annotations

from statistics import median
from typing import Any

import msgspec

from ddoctor.evidence.cluster_probes import Pairs
from ddoctor.evidence.gpus import Gpus
from ddoctor.evidence.loading import LoaderCurve
from ddoctor.evidence.plan import Plan
from ddoctor.evidence.probes import AllReduce, HostToDevice, Matmul, MemoryBandwidth
from ddoctor.evidence.run_history import RunHistory
from ddoctor.evidence.section import Evidence, Section
from ddoctor.evidence.steps import Lines, MemoryOverTime, Steps
from ddoctor.evidence.training import TrainingRun
from ddoctor.models import Report
from ddoctor.report.hosts import SIDE_BY_SIDE, close_up
from ddoctor.report.places import ranges
from ddoctor.report.wording import Grid, quantity

UNKNOWN = "–"

MANY = 8
"""A list of more measured values than this is summarised."""


Fields = dict[str, str | Grid]
"""The fields of a section by label."""

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
    RunHistory,
    Steps,
)
"""Sections that the page shows elsewhere."""


def by_title(report: Report, evidence: Evidence) -> dict[str, dict[str, Fields]]:
    """Return the fields of the run, if it is short enough to read, and of the hosts near by."""
    found = {}
    if not any(len(run.ranks) > SIDE_BY_SIDE for run in evidence.all(TrainingRun)):
        recorded = Evidence(section for section in evidence if section.commands[0] == "run")
        found["All evidence of the run"] = details(recorded, "")
    for host in close_up(report, evidence):
        found[f"All evidence from {host}"] = details(evidence, host)
    return {title: sections for title, sections in found.items() if sections}


def details(
    evidence: Evidence, host: str, leave: tuple[type[Section], ...] = SHOWN_ELSEWHERE
) -> dict[str, Fields]:
    """Return the fields of a host's sections by label, without the section types to leave out."""
    sections = (s for s in evidence if s.host == host and not isinstance(s, leave))
    return {section.label().replace("-", " "): _fields(section) for section in sections}


def _fields(section: Section) -> Fields:
    fields: dict[str, Any] = msgspec.to_builtins(section)
    return {
        _words(name): _grid(value) if _parts(value) else _text(value)
        for name, value in fields.items()
        if name not in ("type", "host") and (name != "unseen" or value)
    }


def _parts(value: Any) -> bool:
    return isinstance(value, tuple) and bool(value) and isinstance(value[0], dict)


def _grid(parts: tuple[dict[str, Any], ...]) -> Grid:
    columns = tuple(parts[0])
    return Grid(
        head=tuple(map(_words, columns)),
        rows=tuple(tuple(_text(part.get(column)) for column in columns) for part in parts),
    )


def _text(value: Any) -> str:
    if value is None or value == "":
        return UNKNOWN
    if value == ():
        return "none"
    if isinstance(value, tuple) and len(value) > MANY and set(map(type, value)) == {float}:
        least, most = quantity(min(value)), quantity(max(value))
        return f"{len(value)} from {least} to {most}, median {quantity(median(value))}"
    if isinstance(value, tuple):
        return ranges(value) if set(map(type, value)) == {int} else ", ".join(map(_text, value))
    if isinstance(value, dict):
        return ", ".join(f"{_words(name)} {_text(item)}" for name, item in value.items())
    return quantity(value)


def _words(name: str) -> str:
    return name.replace("_", " ")
