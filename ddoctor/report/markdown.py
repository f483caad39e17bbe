"""The report as GitHub-flavoured Markdown, for a ticket."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from ddoctor.evidence.gpus import Gpus
from ddoctor.evidence.plan import Plan
from ddoctor.evidence.section import Evidence
from ddoctor.models import Finding, Fix, Observation, Report, Severity
from ddoctor.report import fitness, live, plan, repeats, wording
from ddoctor.report.endings import endings
from ddoctor.report.facts import facts
from ddoctor.report.hosts import close_up, gpu_rows, holders, host_table
from ddoctor.report.scale import HEAD, scales
from ddoctor.report.step_breakdown import percent, step_breakdowns
from ddoctor.report.waits import wait_matrices

CODE_SPAN = re.compile(r"(`[^`\n]+`)")
RANKS = 16
"""Up to this many ranks, each has a row; of more, only the most telling ones."""

SPECIAL = re.compile(r"([\\*<\[\]|~$#]|(?<!\w)_|_(?!\w))")


def render(report: Report, evidence: Evidence) -> str:
    """Return the report in the terminal's order, with tables of the hosts and GPUs at the end."""
    return wording.tamed("\n\n".join(_blocks(report, evidence)) + "\n")


def _blocks(report: Report, evidence: Evidence) -> Iterator[str]:
    yield f"# ddoctor: {_text(wording.verdict(report))}"
    yield _table(("examined", ""), ((fact.label, fact.text) for fact in facts(evidence)))
    for section in evidence.all(Plan):
        found = plan.table(section)
        yield f"## {found.title}"
        yield _table(found.head, found.rows)
    yield from _live(evidence)
    yield from _steps(evidence)
    for one in repeats.shown(report):
        if one.finding.severity is Severity.NOTE:
            yield from _note(one.finding, one.number)
        else:
            yield from _finding(one.finding, one.number)
        if one.others:
            yield _text(str(one))
    yield from _fitness(report)
    yield from _endings(report, evidence)
    yield from _hosts(report, evidence)
    yield f"*ddoctor {report.ddoctor}, `ddoctor {report.command}`, {report.created}*"


def _live(evidence: Evidence) -> Iterator[str]:
    rows = live.rows(evidence)
    if rows:
        yield "## What each rank was doing"
        yield _table(
            ("rank", "main thread", "process"),
            ((row.rank, row.doing, row.state) for row in rows),
        )


def _steps(evidence: Evidence) -> Iterator[str]:
    ended = endings(evidence)
    if ended:
        yield "## How the ranks ended"
        yield _table(
            ("rank", "ended", "at", "steps", "last in", "message", "line"),
            (
                (
                    str(one.rank),
                    one.ended,
                    one.time,
                    str(one.steps),
                    one.doing,
                    one.reason,
                    one.line,
                )
                for one in ended
            ),
        )
    for breakdown in step_breakdowns(evidence):
        yield "## Where the step goes"
        bars, unit = breakdown.shown(RANKS), breakdown.unit
        by_rank = breakdown.table(bars)
        yield _table(
            by_rank.head,
            (
                *by_rank.rows,
                ("mean of all ranks", *(unit.figure(one.seconds) for one in breakdown.slices), ""),
                ("share of the step", *(percent(one.share) for one in breakdown.slices), ""),
            ),
        )
        if len(bars) < len(breakdown.bars):
            yield _text(wording.sentence(breakdown.summary()))
        met = [
            (one.phase, str(line))
            for one in breakdown.slices
            for line in breakdown.sampled_at(one.phase)
        ]
        if met:
            yield _table(("phase", "sampled at"), met)
    for matrix in wait_matrices(evidence):
        if matrix.notable:
            yield _text(wording.sentence(str(matrix)))
    for scale in scales(evidence):
        yield "## Predicted scaling"
        yield _table(HEAD, map(scale.cells, scale.rows))


def _finding(finding: Finding, number: int) -> Iterator[str]:
    yield f"## {number}. {finding.severity.value}: {_text(finding.title)}"
    yield f"*{_text(wording.headline(finding))}*"
    yield _text(finding.because)
    if finding.evidence:
        yield _observations(repeats.rows(finding))
        if left := repeats.rows_left(finding):
            yield _text(left)
    for fix in finding.fixes:
        yield from _fix(fix)
    if finding.consequences:
        yield f"Also explains: {', '.join(finding.consequences)}"
    yield f"More: `ddoctor explain {finding.cause}`"


def _note(finding: Finding, number: int) -> Iterator[str]:
    yield f"## {number}. note: {_text(finding.title)}"
    yield f"*{_text(wording.headline(finding))}*: {_text(finding.because)}"
    for fix in finding.fixes[:1]:
        yield f"Fix: {_text(fix.summary)}"
        yield _fenced(fix)


def _observations(rows: Iterable[Observation]) -> str:
    return _table(
        ("evidence", "value", "expected", "source"),
        ((row.name, *wording.observed(row), row.source) for row in rows),
    )


def _fix(fix: Fix) -> Iterator[str]:
    yield f"**Fix:** {_text(fix.summary)}"
    yield _fenced(fix)
    for label, text in wording.afterwards(fix):
        yield f"**{label.capitalize()}:** {_text(text)}"


def _fenced(fix: Fix) -> str:
    longest = max(map(len, re.findall(r"`{3,}", fix.paste)), default=2)
    fence = "`" * (longest + 1)
    paste = fix.paste.rstrip("\n")
    return f"{fence}{fix.language}\n{paste}\n{fence}"


def _fitness(report: Report) -> Iterator[str]:
    parted = fitness.fit(report)
    if parted is None:
        return
    yield "## Fit and unfit hosts"
    yield "\n".join(f"- {label}: {_text(text)}" for label, text in parted.lines())
    for way in parted.exclusions():
        yield f"To {_text(way.summary)}:"
        yield _fenced(way)
        if way.caution:
            yield f"Caution: {_text(way.caution)}"


def _endings(report: Report, evidence: Evidence) -> Iterator[str]:
    failed = [f"{row.check}: {row.error}" for row in repeats.failed(report)]
    skipped = [
        f"{group} ({', '.join(group.names)})" if len(group.names) > 1 else str(group)
        for group in wording.left_out(report, evidence)
    ]
    unseen = [f"{', '.join(group.names)}: {group.reason}" for group in wording.unseen(evidence)]
    for heading, lines in (("Failed", failed), ("Skipped", skipped), ("Not seen", unseen)):
        if lines:
            yield f"## {heading}"
            yield "\n".join(f"- {_text(line)}" for line in lines)


def _hosts(report: Report, evidence: Evidence) -> Iterator[str]:
    table = host_table(evidence)
    if len(evidence.hosts) > 1 and table.hosts:
        whole = len(table.hosts) == len(evidence.hosts)
        yield "## Hosts" if whole else "## Hosts that differ from the majority"
        yield _table(
            ("host", *(row.label for row in table.rows)),
            (
                (host, *(row.values[column] for row in table.rows))
                for column, host in enumerate(table.hosts)
            ),
        )
    for host in close_up(report, evidence):
        section = evidence.of(Gpus, host)
        if section is not None and section.gpus:
            rows = gpu_rows(section)
            yield f"## GPUs of {_text(section.host)}"
            yield _table(
                ("", *(str(gpu.index) for gpu in section.gpus)),
                ((row.label, *row.values) for row in rows if not row.same),
            )
            yield _table(
                ("same on all", ""), ((row.label, row.values[0]) for row in rows if row.same)
            )
        if section is not None and (held := holders(section)):
            yield _table(
                ("GPU", "process", "user", "memory", "holder"),
                (
                    (
                        str(holder.gpu),
                        f"{holder.process.pid} {holder.process.name}",
                        holder.process.user,
                        ""
                        if holder.process.memory is None
                        else wording.size(holder.process.memory),
                        holder.process.holder,
                    )
                    for holder in held
                ),
            )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table without the columns that are empty in every row."""
    cells = [[_cell(cell) for cell in row] for row in rows]
    used = [n for n in range(len(head)) if n == 0 or any(row[n] for row in cells)]
    lines = [
        [head[n] for n in used],
        ["---"] * len(used),
        *([row[n] for n in used] for row in cells),
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(text: str) -> str:
    return re.sub(r"(?<!\\)\|", r"\\|", _text(text))


def _text(text: str) -> str:
    """Escape plain text, but not code spans, so that nothing in it acts as Markdown or HTML."""
    parts = CODE_SPAN.split(" ".join(text.split()))
    return "".join(
        part if number % 2 else SPECIAL.sub(r"\\\1", part) for number, part in enumerate(parts)
    )
