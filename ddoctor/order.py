"""The order in which to fix what was found: the root first, and under it what follows from it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from ddoctor.models import Confidence, Finding, Result, Severity, Where


def order(
    results: Iterable[Result], explains: Mapping[str, Collection[str]]
) -> tuple[Finding, ...]:
    """The findings in the order to fix them, each consequence folded under its root.

    ``explains`` gives for each cause the causes that follow from it.

    A finding explains another when its check says so, both may speak of the same place, and it is
    more than a guess. A root is as severe as the worst of what follows from it.
    """
    findings = sorted(_merged(f for result in results for f in result.findings), key=_urgency)
    parents: dict[Finding, Finding] = {}

    def root(finding: Finding) -> Finding:
        while finding in parents:
            finding = parents[finding]
        return finding

    for finding in findings:
        for other in findings:
            if (
                finding.cause in explains.get(other.cause, ())
                and other.confidence > Confidence.POSSIBLE
                and other.where.meets(finding.where)
                and root(other) != finding
            ):
                parents[finding] = other
                break
    roots = []
    for finding in (finding for finding in findings if finding not in parents):
        family = [one for one in findings if root(one) == finding]
        consequences = dict.fromkeys(one.cause for one in family if one != finding)
        severity = max(one.severity for one in family)
        roots.append(replace(finding, severity=severity, consequences=tuple(consequences)))
    return tuple(sorted(roots, key=_urgency))


def _merged(findings: Iterable[Finding]) -> Iterator[Finding]:
    """The same words about several hosts are one finding about all of them."""
    groups: dict[Finding, list[str]] = {}
    for finding in findings:
        bare = replace(finding, where=replace(finding.where, hosts=()))
        groups.setdefault(bare, []).extend(finding.where.hosts)
    for finding, hosts in groups.items():
        where: Where = replace(finding.where, hosts=tuple(sorted(set(hosts))))
        yield replace(finding, where=where)


def _urgency(finding: Finding) -> tuple[int, float, int, str]:
    """Roots by severity, then by their share of the time, then by confidence."""
    cost = finding.cost
    share = cost.value if cost is not None and cost.unit.startswith("share") else 0.0
    severities, confidences = list(Severity), list(Confidence)
    return (
        -severities.index(finding.severity),
        -share,
        -confidences.index(finding.confidence),
        finding.cause,
    )
