"""The report as text, for a terminal or a file; it says the same without colour."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from ddoctor.evidence.plan import Plan
from ddoctor.evidence.section import Evidence
from ddoctor.models import Finding, Fix, Observation, Report, Severity
from ddoctor.report import bars, fitness, live, plan, repeats, wording
from ddoctor.report.facts import Fact, facts
from ddoctor.report.step_breakdown import step_breakdowns
from ddoctor.report.waits import wait_matrices

WIDEST = 100
"""Longer lines are hard to read, however wide the terminal is."""
INDENT = 3
STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "bold yellow", Severity.NOTE: "bold cyan"}

CODE = re.compile(r"`[^`]+`")
NO_BREAK = "\N{NO-BREAK SPACE}"


def render(report: Report, evidence: Evidence, console: Console) -> None:
    """Print the report. No line is cut: the terminal wraps what must stay whole."""
    for line in _page(report, evidence, min(console.width, WIDEST)):
        line.plain = wording.tamed(line.plain)
        console.print(line, soft_wrap=True)


def _page(report: Report, evidence: Evidence, width: int) -> Iterator[Text]:
    for line in wrapped(wording.verdict(report), width):
        yield Text(line, style=f"bold {_colour(report)}")
    yield Text()
    yield from _facts(facts(evidence), width)
    yield from _plan(evidence, width)
    yield from _live(evidence, width)
    yield from _steps(evidence, width)
    for one in repeats.shown(report):
        yield Text()
        if one.finding.severity is Severity.NOTE:
            yield from _note(one.finding, one.number, width)
        else:
            yield from _finding(one.finding, one.number, width)
        if one.others:
            yield Text()
            yield from _paragraph(str(one), width)
    yield from _fitness(report, width)
    yield from _endings(report, evidence, width)


def _colour(report: Report) -> str:
    if report.findings and report.findings[0].severity > Severity.NOTE:
        return STYLES[report.findings[0].severity]
    return "yellow" if report.crashed else "green"


def _facts(rows: Iterable[Fact], width: int) -> Iterator[Text]:
    rows = tuple(rows)
    column = max((len(row.label) for row in rows), default=0) + 2
    for row in rows:
        for number, line in enumerate(wrapped(row.text, width - column - 2)):
            label = row.label if number == 0 else ""
            yield Text.assemble("  ", (label.ljust(column), "dim"), line)


def _plan(evidence: Evidence, width: int) -> Iterator[Text]:
    for section in evidence.all(Plan):
        found = plan.table(section)
        if max(line.cell_len for line in _columns(found)) > width:
            found = plan.table(section, narrow=True)
        yield Text()
        yield Text(found.title, style="bold")
        yield from _columns(found)


def _columns(found: plan.Table) -> Iterator[Text]:
    rows = (found.head, *found.rows)
    widths = [max(cell_len(row[column]) for row in rows) for column in range(len(found.head))]
    for place, row in enumerate(rows, -1):
        first, *numbers, last = row
        cells = [number.rjust(widths[column]) for column, number in enumerate(numbers, 1)]
        line = "  ".join(("  " + first.ljust(widths[0]), *cells, last)).rstrip()
        yield Text(line, style="dim" if place < 0 else "bold" if place == found.chosen else "")


def _live(evidence: Evidence, width: int) -> Iterator[Text]:
    rows = live.rows(evidence)
    if not rows:
        return
    yield Text()
    yield Text("what each rank was doing", style="bold")
    column = max(len(row.rank) for row in rows) + 4
    for row in rows:
        bar = [("▏", "dim"), *bars.letters(row.slices, bars.SHORTEST), ("▕ ", "dim")]
        drawn = Text.assemble(f"  {row.rank}".ljust(column), *(bar if row.slices else ()))
        indent = drawn.cell_len
        first, *more = wrapped(f"{row.doing} ({row.state})", width - indent)
        yield drawn.append(first)
        for line in more:
            yield Text(" " * indent + line)


def _steps(evidence: Evidence, width: int) -> Iterator[Text]:
    for breakdown in step_breakdowns(evidence):
        yield Text()
        yield Text("where the step goes", style="bold")
        yield from bars.lines(breakdown, width)
        if len(breakdown.bars) > bars.ALL:
            yield from _paragraph(breakdown.summary(), width, indent=2)
    for matrix in wait_matrices(evidence):
        if matrix.notable:
            yield from _paragraph(str(matrix), width, indent=2)


def _finding(finding: Finding, number: int, width: int) -> Iterator[Text]:
    yield from _title(finding, f"{number}.", width)
    yield Text()
    yield from _paragraph(finding.because, width)
    if finding.evidence:
        yield Text()
        yield from _observations(repeats.rows(finding), width)
        if left := repeats.rows_left(finding):
            yield from _paragraph(left, width, style="dim")
    for fix in finding.fixes:
        yield Text()
        yield from _fix(fix, width)
    yield Text()
    if finding.consequences:
        causes = ", ".join(finding.consequences)
        yield from _paragraph(f"also explains: {causes}", width)
    yield from _explain(finding)


def _note(finding: Finding, number: int, width: int) -> Iterator[Text]:
    yield from _title(finding, f"{number}.", width)
    yield from _paragraph(finding.because, width)
    for fix in finding.fixes[:1]:
        yield from _paragraph(f"fix: {fix.summary}", width)
        yield from _paste(fix)
    yield from _explain(finding)


def _title(finding: Finding, number: str, width: int) -> Iterator[Text]:
    style = STYLES[finding.severity]
    word = finding.severity.value
    first, *others = _paragraph(f"{word}: {finding.title}", width, style="bold")
    lead = f"{number} ".ljust(INDENT)
    first.plain = lead + first.plain[INDENT:]
    first.stylize(style, len(lead), len(lead) + len(word))
    yield from (first, *others)
    yield from _paragraph(wording.headline(finding), width, style="dim")


def _observations(rows: tuple[Observation, ...], width: int) -> Iterator[Text]:
    """Yield name, value and expected value in columns; the source follows, or is below if long.

    Rows that do not fit columns become running text; consecutive rows share a source.
    """
    cells = [(row.name, *wording.observed(row)) for row in rows]
    names, values, expectations = (max(map(cell_len, c)) for c in zip(*cells, strict=True))
    columns = []
    for name, value, expected in cells:
        line = Text.assemble(
            " " * INDENT, _padded(name, names + 2), (_padded(value, values + 2), "bold")
        )
        if expectations:
            told = f"expected {expected}" if expected else ""
            line.append(_padded(told, len("expected ") + expectations + 2))
        columns.append(line)
    sources = [row.source for row in rows]
    following = [*sources[1:], ""]
    table = tuple(zip(columns, cells, sources, following, strict=True))
    beside = all(line.cell_len + cell_len(source) <= width for line, _, source, _ in table)
    fit = all(cell_len(line.plain.rstrip()) <= width for line in columns)
    for line, (name, value, expected), source, next_source in table:
        if beside:
            line.append(source, style="dim")
        line.rstrip()
        if fit:
            yield line
        else:
            told = f", expected {expected}" if expected else ""
            yield from _paragraph(f"{name}: {value}{told}", width, hanging=2)
        if not beside and source != next_source:
            yield from _paragraph(source, width, indent=INDENT + 2, style="dim")


def _fix(fix: Fix, width: int) -> Iterator[Text]:
    first, *others = _paragraph(f"fix: {fix.summary}", width)
    first.stylize("bold green", INDENT, INDENT + len("fix"))
    yield from (first, *others)
    yield Text()
    yield from _paste(fix)
    for number, (label, text) in enumerate(wording.afterwards(fix)):
        if not number:
            yield Text()
        yield from _paragraph(f"{label}: {text}", width)


def _paste(fix: Fix) -> Iterator[Text]:
    for line in fix.paste.rstrip("\n").split("\n"):
        yield Text(f"{' ' * (INDENT + 4)}{line}".rstrip(), style="cyan")


def _explain(finding: Finding) -> Iterator[Text]:
    yield Text(f"{' ' * INDENT}more: ddoctor explain {finding.cause}", style="dim")


def _fitness(report: Report, width: int) -> Iterator[Text]:
    parted = fitness.fit(report)
    if parted is None:
        return
    yield Text()
    yield Text("hosts", style="bold")
    for label, text in parted.lines():
        yield from _paragraph(f"{label}: {text}", width, indent=2, hanging=2)
    for number, way in enumerate(parted.exclusions()):
        if number:
            yield Text()
        yield from _paragraph(f"to {way.summary}:", width)
        yield from _paste(way)
        if way.caution:
            yield from _paragraph(f"caution: {way.caution}", width)


def _endings(report: Report, evidence: Evidence, width: int) -> Iterator[Text]:
    """Yield what was not examined, and why: unknown is never reported as healthy."""
    skipped = tuple(str(group) for group in wording.left_out(report, evidence))
    unseen = tuple(
        f"{wording.listed(group.names)}: {group.reason}" for group in wording.unseen(evidence)
    )
    failed = tuple(f"{row.check}: {row.error}" for row in repeats.failed(report))
    for heading, lines in (("failed", failed), ("skipped", skipped), ("not seen", unseen)):
        if lines:
            yield Text()
            yield Text(heading, style="bold")
        for line in lines:
            yield from _paragraph(line, width, indent=2, hanging=2)


def _paragraph(
    text: str, width: int, *, indent: int = INDENT, hanging: int = 0, style: str = ""
) -> Iterator[Text]:
    for number, line in enumerate(wrapped(text, width - indent - hanging)):
        yield Text(" " * (indent + (hanging if number else 0)) + line, style=style)


def wrapped(text: str, width: int) -> list[str]:
    """Break lines at spaces, but not in `code`, so that a name or a command stays whole."""
    whole = CODE.sub(lambda code: code[0].replace(" ", NO_BREAK), text)
    lines = textwrap.wrap(whole, width, break_long_words=False, break_on_hyphens=False)
    return [line.replace(NO_BREAK, " ") for line in lines]


def _padded(text: str, width: int) -> str:
    return text + " " * (width - cell_len(text))
