"""The report as text, for a terminal or a file; it says the same without colour."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from ddoctor import characters
from ddoctor.evidence.plan import Plan
from ddoctor.evidence.section import Evidence
from ddoctor.models import Finding, Fix, Report, Severity
from ddoctor.report import (
    advice,
    bars,
    fitness,
    live,
    memory,
    plan,
    repeats,
    run_history,
    timeline,
    wording,
)
from ddoctor.report.facts import facts
from ddoctor.report.step_breakdown import ALL, step_breakdown
from ddoctor.report.waits import wait_matrix

WIDEST = 100
"""Longer lines are hard to read, however wide the terminal is."""
# A long name may leave no more for the text next to it, and some programs set COLUMNS=0.
NARROWEST = 20
INDENT = 3
STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "bold yellow", Severity.NOTE: "bold cyan"}

CODE = re.compile(r"`[^`]+`")
NO_BREAK = "\N{NO-BREAK SPACE}"


def render(report: Report, evidence: Evidence, console: Console) -> None:
    """Print the report. No line is cut: the terminal wraps what must stay whole."""
    for line in tamed(_page(report, evidence, max(NARROWEST, min(console.width, WIDEST)))):
        console.print(line, soft_wrap=True)


def tamed(lines: Iterable[Text]) -> Iterator[Text]:
    """Yield lines without control characters."""
    for line in lines:
        line.plain = characters.tamed(line.plain)
        yield line


def _page(report: Report, evidence: Evidence, width: int) -> Iterator[Text]:
    for line in wrapped(wording.verdict(report), width):
        yield Text(line, style=f"bold {_colour(report)}")
    yield Text()
    yield from _facts(evidence, width)
    yield from _plan(evidence, width)
    yield from _live(evidence, width)
    yield from _happened(evidence, width)
    yield from _timeline(report, evidence, width)
    yield from _steps(evidence, width)
    yield from _memory(evidence, width)
    for one in repeats.shown(report):
        yield Text()
        yield from _finding(one.finding, one.number, width)
        if one.others:
            yield Text()
            yield from _paragraph(str(one), width)
    yield from _fitness(report, width)
    for heading, lines in repeats.remainder(report, evidence):
        if lines:
            yield from _list(heading, lines, width)


def _colour(report: Report) -> str:
    for first in wording.serious(report):
        return STYLES[first.severity]
    return "yellow" if report.crashed else "green"


def _facts(evidence: Evidence, width: int) -> Iterator[Text]:
    rows = facts(evidence)
    column = max((len(label) for label, _ in rows), default=0) + 2
    for name, text in rows:
        yield from _after(Text.assemble("  ", (name.ljust(column), "dim")), text, width)


def _plan(evidence: Evidence, width: int) -> Iterator[Text]:
    for section in evidence.all(Plan):
        yield from _fitting([plan.table(section, narrow=narrow) for narrow in range(3)], width)
        both = (advice.tables(section, narrow=narrow) for narrow in (False, True))
        for found in zip(*both, strict=True):
            yield from _fitting(found, width)
        if section.candidates:
            yield from _paragraph(advice.LEGEND, width, indent=2)


def _fitting(tables: Sequence[wording.Grid], width: int) -> Iterator[Text]:
    """Yield the first of these tables that fits into the width, or the last."""
    fitting = (one for one in tables if max(line.cell_len for line in _columns(one)) <= width)
    found = next(fitting, tables[-1])
    yield Text()
    for line in wrapped(found.title, width):
        yield Text(line, style="bold")
    yield from _columns(found)


def _columns(found: wording.Grid) -> Iterator[Text]:
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
        lead = Text.assemble(f"  {row.rank}".ljust(column), *(bar if row.slices else ()))
        yield from _after(lead, f"{row.doing} ({row.state})", width)
    found = live.time(evidence)
    if found.rows:
        yield Text()
        yield Text(found.title, style="bold")
        for share, what, who, at in found.rows:
            yield from _after(
                Text(f"  {share:>4}  "), f"{what}, {who}" + (f", at {at}" if at else ""), width
            )


def _happened(evidence: Evidence, width: int) -> Iterator[Text]:
    for history in run_history.histories(evidence):
        found = run_history.events(history, evidence)
        if found.rows:
            yield Text()
            yield Text(found.title, style="bold")
            for at, step, what, *rest in found.rows:
                told = ", ".join(filter(None, rest))
                told = f"step {step}: {what}" + (f" ({told})" if told else "")
                yield from _after(Text(f"  {at}  ", style="dim"), told, width)


def _timeline(report: Report, evidence: Evidence, width: int) -> Iterator[Text]:
    """Yield what a log says; of a recorded run, the facts have the ends of the ranks.

    A single line that names no rank and no host is in its finding.
    """
    found = timeline.timeline(report, evidence)
    if not found.of_log or [row.is_named for row in found.rows] in ([], [False]):
        return
    yield Text()
    yield Text(found.table.title, style="bold")
    column = min(max(cell_len(row.who) for row in found.rows), width // 3) + 4
    for row in found.rows:
        lead = Text(f"  {row.who}".ljust(column))
        yield from _after(lead, str(row), width)
    if found.more:
        yield from _paragraph(f"and {found.more} more", width, indent=2)
    if found.note:
        yield from _paragraph(found.note, width, indent=2)
    for excerpt in [row.excerpt for row in found.rows if row.excerpt][:1]:
        yield Text()
        yield Text(f"  {excerpt.place}", style="dim")
        for line in timeline.numbered(excerpt):
            cut = line.text if len(line.text) <= width - 2 else f"{line.text[: width - 3]}…"
            yield Text(f"  {cut}", style="" if line.is_event else "dim")


def _steps(evidence: Evidence, width: int) -> Iterator[Text]:
    if breakdown := step_breakdown(evidence):
        yield Text()
        yield Text("where the step goes", style="bold")
        yield from bars.lines(breakdown, width)
        if len(breakdown.bars) > ALL:
            yield from _paragraph(breakdown.summary(), width, indent=2)
    matrix = wait_matrix(evidence)
    if matrix is not None and matrix.notable:
        yield from _paragraph(str(matrix), width, indent=2)


def _memory(evidence: Evidence, width: int) -> Iterator[Text]:
    found = memory.holders(evidence)
    if not found.rows:
        return
    yield Text()
    yield Text(found.title, style="bold")
    rows = [found.head, *found.rows]
    names, sizes, shares = (max(cell_len(row[column]) for row in rows) for column in range(3))
    for number, (name, size, share, what) in enumerate(rows):
        cells = f"  {_padded(name, names)}  {size.rjust(sizes)}  {share.rjust(shares)}  "
        yield from _after(Text(cells, style="" if number else "dim"), what, width)


def _finding(finding: Finding, number: int, width: int) -> Iterator[Text]:
    """Yield a finding; of a note, only what it is and its first fix."""
    brief = finding.severity is Severity.NOTE
    yield from _title(finding, number, width)
    if not brief:
        yield Text()
    yield from _paragraph(finding.because, width)
    if finding.evidence and not brief:
        yield Text()
        yield from _observations(repeats.rows(finding), width)
        if left := repeats.rows_left(finding):
            yield from _paragraph(left, width, style="dim")
    for fix in finding.fixes[: 1 if brief else None]:
        yield from _fix(fix, width, brief=brief)
    if not brief:
        yield Text()
        if finding.consequences:
            causes = ", ".join(finding.consequences)
            yield from _paragraph(f"also explains: {causes}", width)
    yield Text(f"{' ' * INDENT}more: ddoctor explain {finding.cause}", style="dim")


def _title(finding: Finding, number: int, width: int) -> Iterator[Text]:
    style = STYLES[finding.severity]
    word = finding.severity.value
    first, *others = _paragraph(f"{word}: {finding.title}", width, style="bold")
    lead = f"{number}. ".ljust(INDENT)
    first.plain = lead + first.plain[INDENT:]
    first.stylize(style, len(lead), len(lead) + len(word))
    yield from (first, *others)
    yield from _paragraph(wording.headline(finding), width, style="dim")


def _observations(rows: Sequence[tuple[str, str, str, str]], width: int) -> Iterator[Text]:
    """Yield name, value and expected value in columns; the source follows, or is below if long.

    Rows that do not fit columns become running text; consecutive rows share a source.
    """
    names, values, expectations, _ = (
        max(map(cell_len, column)) for column in zip(*rows, strict=True)
    )
    columns = []
    for name, value, expected, _ in rows:
        line = Text.assemble(
            " " * INDENT, _padded(name, names + 2), (_padded(value, values + 2), "bold")
        )
        if expectations:
            due = f"expected {expected}" if expected else ""
            line.append(_padded(due, len("expected ") + expectations + 2))
        columns.append(line)
    sources = [source for *_, source in rows]
    after = all(
        line.cell_len + cell_len(source) <= width
        for line, source in zip(columns, sources, strict=True)
    )
    fit = all(cell_len(line.plain.rstrip()) <= width for line in columns)
    following = [*sources[1:], ""]
    for line, row, next_source in zip(columns, rows, following, strict=True):
        name, value, expected, source = row
        if after:
            line.append(source, style="dim")
        line.rstrip()
        if fit:
            yield line
        else:
            due = f", expected {expected}" if expected else ""
            yield from _paragraph(f"{name}: {value}{due}", width, hanging=2)
        if not after and source != next_source:
            yield from _paragraph(source, width, indent=INDENT + 2, style="dim")


def _fix(fix: Fix, width: int, *, brief: bool) -> Iterator[Text]:
    first, *others = _paragraph(f"fix: {fix.summary}", width)
    if not brief:
        yield Text()
        first.stylize("bold green", INDENT, INDENT + len("fix"))
    yield from (first, *others)
    if brief:
        yield from _paste(fix)
        return
    yield Text()
    yield from _paste(fix)
    for number, (label, text) in enumerate(wording.afterwards(fix)):
        if not number:
            yield Text()
        yield from _paragraph(f"{label}: {text}", width)


def _paste(fix: Fix) -> Iterator[Text]:
    for line in fix.paste.rstrip("\n").split("\n"):
        yield Text(f"{' ' * (INDENT + 4)}{line}".rstrip(), style="cyan")


def _fitness(report: Report, width: int) -> Iterator[Text]:
    parted = fitness.fit(report)
    if parted is None:
        return
    yield from _list("hosts", (f"{label}: {text}" for label, text in parted.lines()), width)
    for number, way in enumerate(parted.exclusions()):
        if number:
            yield Text()
        yield from _paragraph(f"to {way.summary}:", width)
        yield from _paste(way)
        if way.caution:
            yield from _paragraph(f"caution: {way.caution}", width)


def _list(heading: str, lines: Iterable[str], width: int) -> Iterator[Text]:
    yield Text()
    yield Text(heading, style="bold")
    for line in lines:
        yield from _paragraph(line, width, indent=2, hanging=2)


def _after(lead: Text, text: str, width: int) -> Iterator[Text]:
    """Yield text after the lead; its further lines are as far from the margin."""
    indent = " " * lead.cell_len
    for number, line in enumerate(wrapped(text, width - lead.cell_len)):
        yield Text(indent + line) if number else lead.append(line)


def _paragraph(
    text: str, width: int, *, indent: int = INDENT, hanging: int = 0, style: str = ""
) -> Iterator[Text]:
    for number, line in enumerate(wrapped(text, width - indent - hanging)):
        yield Text(" " * (indent + (hanging if number else 0)) + line, style=style)


def wrapped(text: str, width: int) -> list[str]:
    """Break lines at spaces, but not in `code`, so that a name or a command stays whole."""
    whole = CODE.sub(lambda code: code[0].replace(" ", NO_BREAK), text)
    lines = textwrap.wrap(
        whole, max(width, NARROWEST), break_long_words=False, break_on_hyphens=False
    )
    return [line.replace(NO_BREAK, " ") for line in lines]


def _padded(text: str, width: int) -> str:
    return text + " " * (width - cell_len(text))
