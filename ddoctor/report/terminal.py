"""The report for people, on a terminal or in a file; it says the same without colour."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from ddoctor.evidence.section import Evidence
from ddoctor.models import Finding, Fix, Observation, Report, Severity
from ddoctor.report import wording
from ddoctor.report.facts import Fact, facts

WIDEST = 100
"""Longer lines are hard to read, however wide the terminal."""
INDENT = 3
STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "bold yellow", Severity.NOTE: "bold cyan"}
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Nothing that a machine says about itself may steer the terminal that shows it."""


def render(report: Report, evidence: Evidence, console: Console) -> None:
    """Print the report. No line is cut: what must stay whole is left to the terminal to wrap."""
    for line in _page(report, evidence, min(console.width, WIDEST)):
        line.plain = CONTROL.sub("\N{REPLACEMENT CHARACTER}", line.plain)
        console.print(line, soft_wrap=True)


def _page(report: Report, evidence: Evidence, width: int) -> Iterator[Text]:
    yield Text(wording.verdict(report), style=f"bold {_colour(report)}")
    yield Text()
    yield from _facts(facts(evidence), width)
    for number, finding in enumerate(report.findings, start=1):
        yield Text()
        if finding.severity is Severity.NOTE:
            yield from _note(finding, width)
        else:
            yield from _finding(finding, number, width)
    yield from _endings(report, evidence, width)


def _colour(report: Report) -> str:
    if report.findings and report.findings[0].severity > Severity.NOTE:
        return STYLES[report.findings[0].severity]
    return "yellow" if report.crashed else "green"


def _facts(rows: Iterable[Fact], width: int) -> Iterator[Text]:
    rows = tuple(rows)
    column = max((len(row.label) for row in rows), default=0) + 2
    for row in rows:
        for number, line in enumerate(_wrapped(row.text, width - column - 2)):
            label = row.label if number == 0 else ""
            yield Text.assemble("  ", (label.ljust(column), "dim"), line)


def _finding(finding: Finding, number: int, width: int) -> Iterator[Text]:
    yield from _title(finding, f"{number}.", width)
    yield Text()
    yield from _paragraph(finding.because, width)
    if finding.evidence:
        yield Text()
        yield from _observations(finding.evidence, width)
    for fix in finding.fixes:
        yield Text()
        yield from _fix(fix, width)
    yield Text()
    if finding.consequences:
        causes = ", ".join(finding.consequences)
        yield from _paragraph(f"follows from it: {causes}", width)
    yield from _explain(finding)


def _note(finding: Finding, width: int) -> Iterator[Text]:
    yield from _title(finding, "", width)
    yield from _paragraph(finding.because, width)
    for fix in finding.fixes[:1]:
        yield from _paste(fix)
    yield from _explain(finding)


def _title(finding: Finding, number: str, width: int) -> Iterator[Text]:
    style = STYLES[finding.severity]
    word = finding.severity.value
    first, *others = _wrapped(f"{word}: {finding.title}", width - INDENT)
    title = first.removeprefix(word)
    yield Text.assemble((number.ljust(INDENT), "bold"), (word, style), (title, "bold"))
    for line in others:
        yield Text.assemble(" " * INDENT, (line, "bold"))
    yield from _paragraph(wording.headline(finding), width, style="dim")


def _observations(rows: tuple[Observation, ...], width: int) -> Iterator[Text]:
    """Name, value and expected value in columns; the source beside them or, where long, below."""
    names, values, expectations = (
        max(map(cell_len, column))
        for column in zip(*((row.name, *wording.observed(row)) for row in rows), strict=True)
    )
    lines = []
    for row in rows:
        value, expected = wording.observed(row)
        line = Text.assemble(
            " " * INDENT, _padded(row.name, names + 2), (_padded(value, values + 2), "bold")
        )
        if expectations:
            told = f"expected {expected}" if expected else ""
            line.append(_padded(told, len("expected ") + expectations + 2))
        lines.append(line)
    beside = all(
        line.cell_len + cell_len(row.source) <= width for line, row in zip(lines, rows, strict=True)
    )
    for line, row in zip(lines, rows, strict=True):
        if beside:
            line.append(row.source, style="dim")
        line.rstrip()
        yield line
        if row.source and not beside:
            yield from _paragraph(row.source, width, indent=INDENT + 2, style="dim")


def _fix(fix: Fix, width: int) -> Iterator[Text]:
    first, *others = _wrapped(f"fix: {fix.summary}", width - INDENT)
    yield Text.assemble(" " * INDENT, ("fix", "bold green"), first.removeprefix("fix"))
    for line in others:
        yield Text.assemble(" " * INDENT, line)
    yield Text()
    yield from _paste(fix)
    afterwards = [
        ("caution", fix.caution),
        ("expected gain", fix.expected_gain),
        ("measured here", wording.proof(fix.verified) if fix.verified else ""),
    ]
    if any(text for _, text in afterwards):
        yield Text()
    for label, text in afterwards:
        if text:
            yield from _paragraph(f"{label}: {text}", width)


def _paste(fix: Fix) -> Iterator[Text]:
    for line in fix.paste.rstrip("\n").split("\n"):
        yield Text(f"{' ' * (INDENT + 4)}{line}".rstrip(), style="cyan")


def _explain(finding: Finding) -> Iterator[Text]:
    yield Text(f"{' ' * INDENT}more: ddoctor explain {finding.cause}", style="dim")


def _endings(report: Report, evidence: Evidence, width: int) -> Iterator[Text]:
    """What was not examined, and why: not knowing is never passed off as health."""
    skipped = tuple(str(group) for group in wording.left_out(report, evidence))
    unseen = tuple(
        f"{wording.listed(group.names)}: {group.reason}" for group in wording.unseen(evidence)
    )
    failed = tuple(f"{row.check}: {row.error}" for row in report.crashed)
    for heading, lines in (("failed", failed), ("skipped", skipped), ("not seen", unseen)):
        if lines:
            yield Text()
            yield Text(heading, style="bold")
        for line in lines:
            first, *others = _wrapped(line, width - 4)
            yield Text(f"  {first}")
            yield from (Text(f"    {other}") for other in others)


def _paragraph(text: str, width: int, *, indent: int = INDENT, style: str = "") -> Iterator[Text]:
    for line in _wrapped(text, width - indent):
        yield Text(" " * indent + line, style=style)


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]


def _padded(text: str, width: int) -> str:
    return text + " " * (width - cell_len(text))
