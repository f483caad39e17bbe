"""The report as one self-contained HTML page, to attach to a ticket."""

from __future__ import annotations

from ddoctor.evidence.section import Evidence
from ddoctor.models import Report


def render(report: Report, evidence: Evidence) -> str:
    """The report as an HTML page that makes no request."""
    return f"<!doctype html>\n<title>ddoctor: {report.verdict.value}</title>\n"
