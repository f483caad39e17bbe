"""The screen of `ddoctor attach --watch`: what each rank does, what it did, and what to fix."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from datetime import datetime

from rich.text import Text

from ddoctor.analysis.live_ranks import LiveRankState
from ddoctor.analysis.live_state import LiveState
from ddoctor.evidence.live import LiveLook
from ddoctor.evidence.section import Evidence
from ddoctor.models import Report, Severity
from ddoctor.report import bars, live, wording
from ddoctor.report.step_breakdown import LETTERS
from ddoctor.report.terminal import STYLES, wrapped

LOOKS = 20
"""At most this many samples are remembered."""
STANDS = ("!", "bold red")


class History:
    """The main activity of each rank in the last samples, a letter each."""

    def __init__(self) -> None:
        self._letters: dict[int, deque[tuple[str, str]]] = {}

    def add(self, evidence: Evidence) -> None:
        """Add one sample."""
        seen = {one.rank: _letter(one) for one in LiveState.derive(evidence.all(LiveLook)).ranks}
        longest = max(map(len, self._letters.values()), default=0)
        for rank in {*self._letters, *seen}:
            row = self._letters.setdefault(rank, deque([(" ", "")] * longest, LOOKS))
            row.append(seen.get(rank, (" ", "")))

    def of(self, rank: int) -> tuple[tuple[str, str], ...]:
        """Return the letters of a rank, the latest sample at the end."""
        return tuple(self._letters.get(rank, ()))


def _letter(one: LiveRankState) -> tuple[str, str]:
    if one.stands and not one.waits:
        return STANDS
    phase = max(one.shares, key=lambda name: one.shares[name], default="")
    return (LETTERS[phase], bars.COLOURS[phase]) if phase else STANDS


def screen(
    report: Report, evidence: Evidence, history: History, width: int, height: int
) -> list[Text]:
    """Return the lines of the screen, no more than fit."""
    head = [
        Text(_cut(f"{' '.join(one.command)} ({one.job})", width - 22), style="bold")
        for one in evidence.all(LiveLook)[:1]
    ]
    clock = f"{datetime.now():%H:%M:%S}  q: quit"
    top = Text.assemble(head[0] if head else "", " " * 2, (clock, "dim"))
    ending = list(_verdict(report, width))[: height // 2]
    room = height - 3 - len(ending)
    rows = list(_rows(evidence, history, width))
    if len(rows) > room:
        rows = [*rows[: room - 1], Text(f"  and {len(rows) - room + 1} more rows", style="dim")]
    drawn = {letter for row in live.rows(evidence) for letter, _ in history.of(row.first)}
    told = {"!": "stands"} | {letter: phase for phase, letter in LETTERS.items()}
    legend = "  ".join(f"{letter} {name}" for letter, name in told.items() if letter in drawn)
    lines = [top, Text(), *rows, Text(), *ending]
    if len(lines) < height:
        lines.append(Text(_cut(legend, width), style="dim"))
    for line in lines:
        line.plain = wording.tamed(line.plain)
    return lines


def _rows(evidence: Evidence, history: History, width: int) -> Iterator[Text]:
    rows = live.rows(evidence)
    column = max((len(row.rank) for row in rows), default=0) + 2
    for row in rows:
        line = Text.assemble(row.rank.ljust(column), "▕")
        for letter, style in history.of(row.first):
            line.append(letter, style)
        line.append("▏ ")
        line.append(_cut(f"{row.doing} ({row.state})", width - line.cell_len))
        yield line


def _verdict(report: Report, width: int) -> Iterator[Text]:
    serious = [one for one in report.findings if one.severity > Severity.NOTE]
    if not serious:
        yield Text(_cut(wording.verdict(report), width), style="bold green")
    for finding in serious[:1]:
        style = STYLES[finding.severity]
        for line in wrapped(f"{finding.severity.value}: {finding.title}", width):
            yield Text(line, style=style)
        for line in wrapped(finding.because, width):
            yield Text(line)
        for fix in finding.fixes[:1]:
            for line in wrapped(f"fix: {fix.summary}", width):
                yield Text(line, style="bold")


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: max(0, width - 1)]}…"
