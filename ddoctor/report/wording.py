"""The words that all output formats share: verdict, places, figures, and what was left out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ddoctor.evidence.probes import ProbeRuns
from ddoctor.evidence.section import Evidence
from ddoctor.models import (
    JUDGING,
    Cost,
    Finding,
    Fix,
    Observation,
    Report,
    Severity,
    Value,
    Verdict,
    Verified,
    Where,
)
from ddoctor.report.places import hosts as hosts
from ddoctor.report.places import listed as listed
from ddoctor.report.places import ranks


@dataclass(frozen=True, kw_only=True)
class Grid:
    """A table of texts; the first cell of a row is its name."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""
    chosen: int | None = None
    """The number of the row to stress."""
    odd: frozenset[tuple[int, int]] = frozenset()
    """The row and column of each cell that differs from the others of its row."""

    def without_empty_columns(self) -> Grid:
        """Return the table without the columns that are empty in every row, but for the first."""
        used = [n for n in range(len(self.head)) if n == 0 or any(row[n] for row in self.rows)]
        head, *rows = (tuple(row[n] for n in used) for row in (self.head, *self.rows))
        return replace(self, head=head, rows=tuple(rows))


UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def serious(report: Report) -> tuple[Finding, ...]:
    """Return the findings that are more than a note, in the order of fixing."""
    return tuple(finding for finding in report.findings if finding.severity > Severity.NOTE)


def verdict(report: Report) -> str:
    """Return the verdict in one line."""
    findings = len(serious(report))
    notes = len(report.findings) - findings
    parts = []
    if findings:
        parts.append(counted(findings, "finding"))
    elif report.verdict is not Verdict.INCOMPLETE:
        # A log that says nothing of a fault does not show that all is well.
        told = report.command == "diagnose" and not report.world.hosts
        parts.append("no fault found" if told else "healthy")
    if notes:
        parts.append(counted(notes, "note"))
    if report.unexplained:
        parts.append(f"{counted(len(report.unexplained), 'cost')} not explained")
    line = ", ".join(parts)
    if findings > 1:
        line += ": start with finding 1"
    if report.verdict is Verdict.INCOMPLETE:
        failed = _failed(report)
        line = f"incomplete: {failed}" + (f"; {line}" if line else "")
    return line


def so_far(report: Report) -> str:
    """Return the interim result: the first finding, or the verdict."""
    for first in serious(report):
        return f"{first.severity.value}: {first.because}"
    return verdict(report)


def _failed(report: Report) -> str:
    if len(report.crashed) > 1:
        return f"{len(report.crashed)} parts of the examination failed"
    (only,) = report.crashed
    return only.error if only.check == JUDGING else f"{only.check} failed"


def sentence(text: str) -> str:
    """Return text as a sentence: first letter upper case, and a full stop."""
    return f"{text[:1].upper()}{text[1:]}."


def span(low: str, high: str) -> str:
    """Return a range of two figures, or the figure if both are the same."""
    return low if low == high else f"{low} to {high}"


def counted(number: int, noun: str) -> str:
    """Return ``1 finding`` or ``2,000 findings``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def place(where: Where) -> str:
    """Return hosts, ranks and devices in one line; empty: everywhere."""
    parts = (hosts(where.hosts), ranks(where.ranks), listed(where.devices))
    return ", ".join(part for part in parts if part)


def headline(finding: Finding) -> str:
    """Return where it is, its confidence, and its cost, in one line."""
    cost = finding.cost
    parts = (place(finding.where), finding.confidence.value, f"costs {price(cost)}" if cost else "")
    return " · ".join(part for part in parts if part)


def price(cost: Cost) -> str:
    """Return ``31 % of the step`` or ``12.5 GiB``."""
    if cost.unit.startswith("share of "):
        percent = cost.value * 100
        # A rest of the step remains, however small, so 100 % would be wrong.
        shown = min(round(percent), 99) if percent < 100 else round(percent)
        return f"{shown} % of the {cost.unit.removeprefix('share of ')}"
    return quantity(cost.value, cost.unit)


def quantity(value: Value, unit: str = "") -> str:
    """Return a value with its unit; a measured one has three significant digits."""
    if isinstance(value, bool):
        text = "yes" if value else "no"
    elif isinstance(value, float):
        digits = 0 if abs(value) >= 100 else 1
        text = f"{value:.{digits}f}" if abs(value) >= 10 else f"{value:.3g}"
    else:
        text = str(value)
    return f"{text} {unit}".rstrip()


def observed(row: Observation) -> tuple[str, str]:
    """Return value and expected value of a row of evidence, each with its unit."""
    missing = row.expected is None or row.expected == ""
    expected = "" if missing or row.expected is None else quantity(row.expected, row.unit)
    return quantity(row.value, row.unit), expected


MANY = 2
"""A larger change is shown as a factor."""


def proof(verified: Verified) -> str:
    """Return a fix's control run: ``0.9 → 0.6 s/step (-33 %)``, or ``(2.4 times as fast)``."""
    # The change of the figures as shown, so that readers can recompute it.
    before, after = (float(f"{one:.3g}") for one in (verified.before, verified.after))
    times = after / before if before else 0.0
    faster = before / after if after and verified.unit.startswith("s/") else 0.0
    if faster > MANY:
        change = f" ({round(faster, 1):g} times as fast)"
    elif times > MANY:
        change = f" ({times:.3g} times)"
    else:
        change = f" ({times - 1:+.0%})".replace("%)", " %)") if times else ""
    return f"{quantity(before)} → {quantity(after, verified.unit)}{change}"


def afterwards(fix: Fix) -> Iterator[tuple[str, str]]:
    """Yield label and sentence of each line below a fix's text."""
    proven = proof(fix.verified) if fix.verified else ""
    labels = ("caution", "expected gain", "verified")
    for label, text in zip(labels, (fix.caution, fix.expected_gain, proven), strict=True):
        if text:
            yield label, text


def size(count: float) -> str:
    """Return bytes in the largest binary unit that gives at least 1."""
    power = min(int(count).bit_length() - 1, 49) // 10 if count >= 1 else 0
    amount = count / 1024**power
    return f"{amount:.3g} {UNITS[power]}" if amount < 100 else f"{amount:.0f} {UNITS[power]}"


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """Checks, probes or files that were left out for the same reason."""

    reason: str
    names: tuple[str, ...]
    needs: tuple[str, ...] = ()
    """The labels of the missing evidence."""

    def __str__(self) -> str:
        """Return one line: ``11 checks need gpus evidence: no NVIDIA driver on this machine``."""
        causes = {name.partition(" (")[0] for name in self.names}
        single = len(causes) == 1
        who = self.names[0] if len(self.names) == 1 else counted(len(causes), "check")
        needs = f" {'needs' if single else 'need'} {listed(self.needs)} evidence"
        return f"{who}{needs if self.needs else ''}: {self.reason}"


def left_out(report: Report, evidence: Evidence) -> tuple[LeftOut, ...]:
    """Return what was skipped, grouped by reason, the largest group first."""
    names: dict[str, dict[str, None]] = {}
    needs: dict[str, set[str]] = {}
    for one in report.skipped:
        # The engine writes it so where a section is missing.
        missing = re.fullmatch(r"no (\S+) evidence: (.+)", one.reason, re.DOTALL)
        label, reason = missing.groups() if missing else ("", one.reason)
        names.setdefault(reason, {})[one.check] = None
        needs.setdefault(reason, set()).update({label} - {""})
    groups = [
        LeftOut(reason=reason, names=tuple(checks), needs=tuple(sorted(needs[reason])))
        for reason, checks in sorted(names.items())
    ]
    probes = [
        LeftOut(reason=run.reason, names=(f"probe {run.probe}",))
        for section in evidence.all(ProbeRuns)
        for run in section.runs
        if run.outcome == "skipped"
    ]
    return (*sorted(groups, key=lambda group: -len(group.names)), *probes)


def unseen(evidence: Evidence) -> tuple[LeftOut, ...]:
    """Return what collectors looked for and could not read, grouped by reason."""
    rows: dict[str, dict[str, None]] = {}
    for section in evidence:
        for row in section.unseen:
            rows.setdefault(row.why, {})[row.what] = None
    return tuple(LeftOut(reason=why, names=tuple(what)) for why, what in rows.items())
