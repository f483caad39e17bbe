"""The order in which to fix findings: root causes first, with their consequences."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter

from ddoctor.models import Confidence, Finding, Result, Severity, Where

FAILURES = ("dead-rank", "first-failure-masked", "script-error")
"""How a run ends, whatever ends it."""


def order(
    results: Iterable[Result],
    explains: Mapping[str, Collection[str]],
    ends_runs: Collection[str] = (),
) -> tuple[Finding, ...]:
    """The findings in the order to fix them, each consequence folded into its root cause.

    ``explains`` maps each cause to the causes that follow from it. An error of one of
    ``ends_runs`` also explains how the run ended.

    A finding explains another if its check says so, both may be in the same place, and its
    confidence is above possible. A root is as severe as its worst consequence. Of two that are as
    urgent, in the same place, what may explain the other comes first; else what names its ranks.
    """
    findings = sorted(_merged(f for result in results for f in result.findings), key=_by_urgency)
    places = _Places(findings)
    parents: dict[int, int] = {}

    def root(number: int) -> int:
        while number in parents:
            number = parents[number]
        return number

    causes = dict.fromkeys(finding.cause for finding in findings)
    explained_by = {
        cause: [
            one
            for one in causes
            if cause in explains.get(one, ())
            or (cause in FAILURES and one in ends_runs and one != cause)
        ]
        for cause in causes
    }

    def may_explain(one: Finding, finding: Finding) -> bool:
        # What only slows a run down ends none.
        named = finding.cause in explains.get(one.cause, ()) or one.severity is Severity.ERROR
        return named and one.confidence > Confidence.POSSIBLE and one.where.meets(finding.where)

    for number, finding in enumerate(findings):
        for other in places.near(finding.where, explained_by[finding.cause]):
            if may_explain(findings[other], finding) and root(other) != number:
                parents[number] = other
                break
    families: dict[int, list[Finding]] = {}
    for number, finding in enumerate(findings):
        families.setdefault(root(number), []).append(finding)
    roots = []
    for number, family in sorted(families.items(), key=itemgetter(0)):
        finding = findings[number]
        consequences = dict.fromkeys(one.cause for one in family if one is not finding)
        severity = max(one.severity for one in family)
        roots.append(replace(finding, severity=severity, consequences=tuple(consequences)))

    told = {(finding.cause, finding.where) for finding in roots}

    def turn(finding: Finding) -> tuple[tuple[int, float, int], bool, bool, str]:
        follows = any((cause, finding.where) in told for cause in explained_by[finding.cause])
        return _urgency(finding), follows, not finding.where.ranks, finding.cause

    return tuple(sorted(roots, key=turn))


def confirmed(
    results: Sequence[Result], of_source: Collection[str], fatal: Collection[str] = ()
) -> tuple[Result, ...]:
    """The results, each cause that was measured once: what the source says of it confirms it.

    ``of_source``: the checks that only read. Two kinds of evidence that agree make it certain. In
    a run that failed, what could have been measured and was not is only possible. A note of what
    was measured, and not found, is left out; not one of a cause in ``fatal``, which may end a run
    later.
    """
    expected: dict[str, Confidence] = {}
    for result in results:
        for finding in result.findings if result.check in of_source else ():
            known = expected.get(finding.cause, Confidence.POSSIBLE)
            expected[finding.cause] = max(known, finding.confidence)
    measured = {
        finding.cause
        for result in results
        if result.check not in of_source
        for finding in result.findings
    }

    measurable = {
        result.check.partition(" (")[0]
        for result in results
        if result.check not in of_source and result.skipped is None and result.crashed is None
    }
    failed = any(
        finding.severity is Severity.ERROR
        for result in results
        if result.check not in of_source
        for finding in result.findings
    )

    harmless = measurable - {*fatal}

    def told(result: Result) -> Iterator[Finding]:
        for finding in result.findings:
            if result.check in of_source:
                if finding.cause not in measured:
                    # What could cost something, and was seen to cost nothing.
                    if finding.severity is Severity.NOTE and finding.cause in harmless:
                        continue
                    refuted = failed and finding.cause in measurable
                    yield replace(finding, confidence=Confidence.POSSIBLE) if refuted else finding
            elif min(finding.confidence, expected.get(finding.cause, Confidence.POSSIBLE)) > (
                Confidence.POSSIBLE
            ):
                yield replace(finding, confidence=Confidence.CERTAIN)
            else:
                yield finding

    return tuple(
        replace(result, findings=tuple(told(result))) if result.findings else result
        for result in results
    )


class _Places:
    """An index of findings by host, which compares each with its neighbours only."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        self._by_host: dict[str, dict[str, list[int]]] = {}
        """By cause and host; the empty host holds findings without a host."""
        for number, finding in enumerate(findings):
            hosts = self._by_host.setdefault(finding.cause, {})
            for host in finding.where.hosts or ("",):
                hosts.setdefault(host, []).append(number)

    def near(self, where: Where, causes: Iterable[str]) -> list[int]:
        """The findings of these causes that share a host with a place, in their order."""
        found: set[int] = set()
        for cause in causes:
            by_host = self._by_host[cause]
            hosts = {*where.hosts, ""} if where.hosts else by_host.keys()
            found.update(number for host in hosts for number in by_host.get(host, ()))
        return sorted(found)


def _merged(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Equal findings on several hosts, merged into one."""
    groups: dict[Finding, list[str]] = {}
    for finding in findings:
        bare = replace(finding, where=replace(finding.where, hosts=()))
        groups.setdefault(bare, []).extend(finding.where.hosts)
    for finding, hosts in groups.items():
        where: Where = replace(finding.where, hosts=tuple(sorted(set(hosts))))
        yield replace(finding, where=where)


def _by_urgency(finding: Finding) -> tuple[tuple[int, float, int], str]:
    return _urgency(finding), finding.cause


def _urgency(finding: Finding) -> tuple[int, float, int]:
    """Sort key: severity, share of the time, confidence."""
    cost = finding.cost
    share = cost.value if cost is not None and cost.unit.startswith("share") else 0.0
    severities, confidences = list(Severity), list(Confidence)
    return (
        -severities.index(finding.severity),
        -share,
        -confidences.index(finding.confidence),
    )
