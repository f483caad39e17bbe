"""Repeated findings and rows are shown a few times and then counted; the JSON has them all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ddoctor.models import JUDGING, Crashed, Finding, Observation, Report, Where
from ddoctor.report import wording

SHOWN = 3
"""At most this many findings of one cause are shown in full."""

ROWS = 12
"""At most this many rows of a finding's evidence, and of failures, are shown."""


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A finding with its number in the order of fixing, and those like it that are not shown."""

    number: int
    finding: Finding
    others: tuple[Finding, ...] = ()

    def __str__(self) -> str:
        """Return one line about the others; empty if there are none."""
        if not self.others:
            return ""
        places = [one.where for one in self.others]
        where = wording.place(
            Where(
                hosts=tuple(sorted({host for one in places for host in one.hosts})),
                ranks=tuple(sorted({rank for one in places for rank in one.ranks})),
            )
        )
        told = f"and {len(self.others)} more of {self.finding.cause}"
        return f"{told}: {where}" if where else told


def shown(report: Report) -> tuple[Shown, ...]:
    """Return the findings to show in full; the last one of a cause also represents the others."""
    numbers: dict[tuple[object, ...], list[int]] = {}
    for number, finding in enumerate(report.findings, start=1):
        numbers.setdefault((finding.cause, finding.severity), []).append(number)
    return tuple(sorted(_shown(report.findings, numbers.values()), key=lambda one: one.number))


def _shown(findings: Sequence[Finding], alike: Iterable[list[int]]) -> Iterator[Shown]:
    for numbers in alike:
        # "and 1 more" needs as much room as the finding's own line.
        few = len(numbers) if len(numbers) <= SHOWN + 1 else SHOWN
        others = tuple(findings[number - 1] for number in numbers[few:])
        for place, number in enumerate(numbers[:few], start=1):
            last = place == few
            yield Shown(number=number, finding=findings[number - 1], others=others if last else ())


def rows(finding: Finding) -> tuple[Observation, ...]:
    """Return the rows of evidence to show."""
    return finding.evidence[:ROWS]


def rows_left(finding: Finding) -> str:
    """Return one line about the rows that are not shown; empty if there are none."""
    left = len(finding.evidence) - ROWS
    return f"and {wording.counted(left, 'more row')} of evidence" if left > 0 else ""


def failed(report: Report) -> tuple[Crashed, ...]:
    """Return the failures, repeated ones with their count, the most frequent first."""
    rows = report.crashed
    if len(rows) == 1 and rows[0].check == JUDGING:
        return ()  # the verdict says it
    times = Counter(rows).most_common()
    told = [
        Crashed(check=f"{row.check} ({count} times)" if count > 1 else row.check, error=row.error)
        for row, count in times[:ROWS]
    ]
    left = len(times) - ROWS
    if left > 0:
        told.append(Crashed(check="and more", error=wording.counted(left, "other failure")))
    return tuple(told)
