"""`ddoctor diff OLD NEW`: lower speeds, changed settings, new findings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import msgspec

from ddoctor import engine
from ddoctor.analysis.figures import Figure, MeasuredFigure, figures
from ddoctor.analysis.host_settings import settings, without_names
from ddoctor.errors import DoctorError
from ddoctor.evidence.section import Evidence
from ddoctor.models import Finding, Report, Severity
from ddoctor.report import schema, wording
from ddoctor.report.expectation import APART

MOST = 12
"""Lines per group on the terminal; the JSON has all."""


@dataclass(frozen=True, kw_only=True)
class Slower:
    """A rate that fell."""

    figure: Figure
    old: float
    new: float

    def __str__(self) -> str:
        """Return a line such as ``matmul 8192, node-1 cuda:3: 712 → 405 TFLOP/s (-43 %)``."""
        place = " ".join(filter(None, (self.figure.host, self.figure.device)))
        size = f" at {wording.size(self.figure.bytes)}" if self.figure.bytes is not None else ""
        rates = f"{wording.quantity(self.old)} → {wording.quantity(self.new, self.figure.unit)}"
        fall = f"{self.new / self.old - 1:+.0%}".replace("%", " %")
        return f"{self.figure.name}{size}{', ' if place else ''}{place}: {rates} ({fall})"


@dataclass(frozen=True, kw_only=True)
class Changed:
    """A setting that changed in the same way on these hosts."""

    name: str
    old: str
    new: str
    hosts: tuple[str, ...]

    def __str__(self) -> str:
        """Return one line, such as ``torch on node-1: 2.7.1 → 2.8.0``."""
        return f"{self.name} on {wording.listed(self.hosts)}: {self.old} → {self.new}"


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The differences between the hosts that are in both bundles."""

    hosts: tuple[str, ...]
    compared: int
    """Number of figures that both bundles measured."""
    slower: tuple[Slower, ...]
    """The worst first."""
    changed: tuple[Changed, ...]
    new: tuple[Finding, ...]
    gone: tuple[Finding, ...]
    failed: tuple[str, ...]
    """Checks and probes that worked in the old bundle and fail in the new one."""

    @property
    def worse(self) -> bool:
        """Whether anything got worse; changed settings and notes do not count."""
        serious = any(finding.severity > Severity.NOTE for finding in self.new)
        return bool(self.slower or self.failed or serious)

    def lines(self) -> Iterator[str]:
        """Yield the lines for a terminal."""
        yield "worse" if self.worse else "nothing got worse"
        groups = (
            ("slower", [str(one) for one in self.slower]),
            ("failed now", list(self.failed)),
            ("found now", [_line(one) for one in self.new]),
            ("no longer found", [_line(one) for one in self.gone]),
            ("changed settings", [str(one) for one in self.changed]),
        )
        for heading, rows in groups:
            if rows:
                yield ""
                yield heading
                yield from (f"  {row}" for row in rows[:MOST])
                if len(rows) > MOST:
                    yield f"  and {len(rows) - MOST} more (--json PATH writes all)"
        yield ""
        measured = wording.counted(self.compared, "figure") if self.compared else "no figure"
        yield f"compared: {measured} that both bundles measured, on {wording.listed(self.hosts)}"

    def json(self) -> str:
        """Return all differences as JSON, for other programs."""
        return schema.render({"worse": self.worse, **msgspec.to_builtins(self)})


def compare(old: Evidence, new: Evidence) -> Difference:
    """Compare the hosts that both bundles have; two bundles of one host each are compared directly.

    Raises:
        DoctorError: no host is in both bundles.
    """
    if len(old.hosts) == len(new.hosts) == 1:
        called = dict(zip(old.hosts, new.hosts, strict=True))
    else:
        called = {host: host for host in old.hosts if host in new.hosts}
    if not called:
        raise DoctorError(
            f"the old bundle has {wording.listed(old.hosts) or 'no host'}, the new one has "
            f"{wording.listed(new.hosts) or 'no host'}: no host is in both"
        )
    before, after = figures(old), figures(new)
    pairs = _largest_sizes(
        {
            figure: (measured, after[renamed])
            for figure, measured in before.items()
            if (renamed := replace(figure, host=called.get(figure.host, figure.host))) in after
        }
    )
    slower = [
        Slower(figure=figure, old=was.rate, new=now.rate)
        for figure, (was, now) in pairs.items()
        if _slower(was, now)
    ]
    reports = engine.examine(old, "diagnose"), engine.examine(new, "diagnose")
    back = {new_name: old_name for old_name, new_name in called.items()}
    known, found = (_places(report, back if report is reports[1] else {}) for report in reports)
    crashed = {row.check for row in reports[0].crashed}
    return Difference(
        hosts=tuple(called),
        compared=len(pairs),
        slower=tuple(sorted(slower, key=lambda one: one.new / one.old)),
        changed=tuple(_changed(old, new, called)),
        new=tuple(
            finding for finding, places in found if not places <= _union(known, finding.severity)
        ),
        gone=tuple(
            finding for finding, places in known if not places & _union(found, Severity.NOTE)
        ),
        failed=tuple(
            f"{row.check}: {row.error}" for row in reports[1].crashed if row.check not in crashed
        ),
    )


def _slower(was: MeasuredFigure, now: MeasuredFigure) -> bool:
    """Whether it is slower by more than the spread of both runs, in median and fastest round."""
    if now.rate >= APART * was.rate or was.rate - now.rate <= was.spread + now.spread:
        return False
    return was.best is None or now.best is None or now.best < APART * was.best


def _largest_sizes(
    pairs: Mapping[Figure, tuple[MeasuredFigure, MeasuredFigure]],
) -> dict[Figure, tuple[MeasuredFigure, MeasuredFigure]]:
    """Return for each collective the largest message size that both bundles measured."""
    largest: dict[Figure, Figure] = {}
    for figure in sorted(pairs, key=lambda figure: figure.bytes or 0):
        largest[replace(figure, bytes=None)] = figure
    return {figure: pairs[figure] for figure in largest.values()}


def _changed(old: Evidence, new: Evidence, called: Mapping[str, str]) -> Iterator[Changed]:
    after = {one.host: one for one in settings(new)}
    hosts: dict[tuple[str, str, str], list[str]] = {}
    for one in settings(old):
        other = after.get(called.get(one.host, ""))
        if other is not None:
            for setting in dict.fromkeys((*one.values, *other.values)):
                was, now = one.get(setting), other.get(setting)
                if was is None or now is None:
                    continue
                names = one.names | other.names if setting.own_words else frozenset[str]()
                if without_names(was, names) != without_names(now, names):
                    hosts.setdefault((setting.name, was, now), []).append(one.host)
    for (name, was, now), where in hosts.items():
        yield Changed(name=name, old=was, new=now, hosts=tuple(where))


Places = frozenset[tuple[str, str]]


def _places(report: Report, called: Mapping[str, str]) -> list[tuple[Finding, Places]]:
    """Return each finding with its causes and hosts, those of its consequences included."""
    return [
        (
            finding,
            frozenset(
                (cause, called.get(host, host))
                for cause in (finding.cause, *finding.consequences)
                for host in finding.where.hosts or ("",)
            ),
        )
        for finding in report.findings
    ]


def _union(found: list[tuple[Finding, Places]], severity: Severity) -> Places:
    """Return the places of all findings of at least this severity."""
    return frozenset(
        place for finding, places in found if finding.severity >= severity for place in places
    )


def _line(finding: Finding) -> str:
    where = wording.place(finding.where)
    named = ", ".join(filter(None, (finding.cause, where)))
    return f"{finding.severity.value}: {named}: {finding.because}"
