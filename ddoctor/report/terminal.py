"""The report for people, on a terminal or in a file, 80 columns wide."""

from __future__ import annotations

from rich.console import Console

from ddoctor.evidence.section import Evidence
from ddoctor.models import Report


def render(report: Report, evidence: Evidence, console: Console) -> None:
    """Print the report; it says the same without colour."""
    console.print(report.verdict.value)
    for finding in report.findings:
        console.print(f"{finding.severity.value}: {finding.title}", markup=False)
        console.print(finding.because, markup=False)
