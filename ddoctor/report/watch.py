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
from ddoctor.models import Report
from ddoctor.report import bars, live, wording
from ddoctor.report.step_breakdown import LETTERS
from ddoctor.report.terminal import STYLES, tamed, wrapped

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
    clock = f"{datetime.now():%H:%M:%S}  q: quit"
    job = [f"{' '.join(one.command)} ({one.job})" for one in evidence.all(LiveLook)[:1]]
    top = _cut(Text("".join(job), style="bold"), width - 22).append(
        f"  {clock}", style="not bold dim"
    )
    ending = [*_time(evidence, width), *_verdict(report, width)][: height // 2]
    room = height - 3 - len(ending)
    rows = list(_rows(evidence, history, width))
    if len(rows) > room:
        rows = [*rows[: room - 1], Text(f"  and {len(rows) - room + 1} more rows", style="dim")]
    drawn = {letter for row in live.rows(evidence) for letter, _ in history.of(row.first)}
    told = {"!": "stands"} | {letter: phase for phase, letter in LETTERS.items()}
    legend = "  ".join(f"{letter} {name}" for letter, name in told.items() if letter in drawn)
    lines = [top, Text(), *rows, Text(), *ending]
    if len(lines) < height:
        lines.append(_cut(Text(legend, style="dim"), width))
    return list(tamed(lines))


def _rows(evidence: Evidence, history: History, width: int) -> Iterator[Text]:
    rows = live.rows(evidence)
    column = max((len(row.rank) for row in rows), default=0) + 2
    for row in rows:
        line = Text.assemble(row.rank.ljust(column), "▕", *history.of(row.first), "▏ ")
        yield _cut(line.append(f"{row.doing} ({row.state})"), width)


def _time(evidence: Evidence, width: int) -> Iterator[Text]:
    rows = live.time(evidence).rows
    if rows:
        told = (f"{share} {what}" + (f" at {at}" if at else "") for share, what, _, at in rows)
        yield _cut(Text(f"time: {', '.join(told)}"), width)
        yield Text()


def _verdict(report: Report, width: int) -> Iterator[Text]:
    serious = wording.serious(report)
    if not serious:
        yield _cut(Text(wording.verdict(report), style="bold green"), width)
    for finding in serious[:1]:
        title = f"{finding.severity.value}: {finding.title}"
        parts = [(title, STYLES[finding.severity]), (finding.because, "")]
        parts += [(f"fix: {fix.summary}", "bold") for fix in finding.fixes[:1]]
        for text, style in parts:
            yield from (Text(line, style=style) for line in wrapped(text, width))


def _cut(line: Text, width: int) -> Text:
    line.truncate(max(1, width), overflow="ellipsis")
    return line
