"""The report as Markdown, for a ticket."""

from __future__ import annotations

from ddoctor.evidence.section import Evidence
from ddoctor.models import Report


def render(report: Report, evidence: Evidence) -> str:
    """The report as GitHub-flavoured Markdown."""
    return f"# ddoctor: {report.verdict.value}\n"
