"""Repeated findings and rows are shown a few times and then counted; the JSON has them all."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from ddoctor.evidence.section import Evidence
from ddoctor.models import JUDGING, Crashed, Finding, Report, Severity, Where
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
    alike: dict[tuple[str, Severity], list[Shown]] = {}
    for number, finding in enumerate(report.findings, start=1):
        one = Shown(number=number, finding=finding)
        alike.setdefault((finding.cause, finding.severity), []).append(one)
    found: list[Shown] = []
    for every in alike.values():
        # "and 1 more" needs as much room as the finding's own line.
        few = len(every) if len(every) <= SHOWN + 1 else SHOWN
        others = tuple(one.finding for one in every[few:])
        found += [*every[: few - 1], replace(every[few - 1], others=others)]
    return tuple(sorted(found, key=lambda one: one.number))


def rows(finding: Finding) -> tuple[tuple[str, str, str, str], ...]:
    """Return name, value, expected value and source of each row of evidence to show."""
    return tuple((row.name, *wording.observed(row), row.source) for row in finding.evidence[:ROWS])


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


def remainder(
    report: Report, evidence: Evidence, *, whole: bool = False
) -> tuple[tuple[str, list[str]], ...]:
    """Return heading and lines of what was not examined: unknown is never reported as healthy.

    Args:
        whole: List all names of checks and of what was not seen.
    """
    listed = ", ".join if whole else wording.listed
    skipped = [
        f"{group} ({listed(group.names)})" if whole and len(group.names) > 1 else str(group)
        for group in wording.left_out(report, evidence)
    ]
    unseen = [f"{listed(group.names)}: {group.reason}" for group in wording.unseen(evidence)]
    crashed = [f"{row.check}: {row.error}" for row in failed(report)]
    unexplained = list(report.unexplained)
    parts = {"not explained": unexplained, "failed": crashed, "skipped": skipped}
    return (*parts.items(), ("not seen", unseen))
