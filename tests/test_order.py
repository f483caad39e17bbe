from __future__ import annotations

from dataclasses import replace

import pytest

from ddoctor.models import Confidence, Cost, Finding, Result, Severity, Where
from ddoctor.order import confirmed, order


def a_finding(
    cause: str = "a",
    severity: Severity = Severity.WARNING,
    confidence: Confidence = Confidence.CERTAIN,
    where: Where | None = None,
    cost: Cost | None = None,
) -> Finding:
    return Finding(
        cause=cause,
        severity=severity,
        confidence=confidence,
        because=f"because of {cause}",
        where=where or Where(),
        cost=cost,
    )


def ordered(
    findings: list[Finding], **explains: tuple[str, ...]
) -> list[tuple[str, tuple[str, ...]]]:
    results = [Result(check=finding.cause, findings=(finding,)) for finding in findings]
    return [(one.cause, one.consequences) for one in order(results, explains)]


def test_severity_comes_first_then_share_then_confidence() -> None:
    findings = [
        a_finding("note", Severity.NOTE),
        a_finding("unsure", confidence=Confidence.POSSIBLE),
        a_finding("sure"),
        a_finding("costly", cost=Cost(value=0.4, unit="share of step")),
        a_finding("broken", Severity.ERROR),
    ]
    assert [cause for cause, _ in ordered(findings)] == [
        "broken",
        "costly",
        "sure",
        "unsure",
        "note",
    ]


@pytest.mark.parametrize(
    ("severity", "explained"), [(Severity.ERROR, True), (Severity.WARNING, False)]
)
def test_what_slows_a_run_down_ends_none(severity: Severity, explained: bool) -> None:
    """Of a cause of which messages of errors are known."""
    findings = (a_finding("a", severity), a_finding("dead-rank", Severity.ERROR))
    told = order([Result(check="a", findings=findings)], {}, {"a"})
    assert [one.cause for one in told] == (["a"] if explained else ["dead-rank", "a"])
    assert order([Result(check="a", findings=findings)], {"a": ("dead-rank",)}, {"a"})[0].cause == (
        "a"
    )


def test_of_equals_what_may_explain_the_other_comes_first() -> None:
    findings = [a_finding(one, confidence=Confidence.POSSIBLE) for one in ("a", "b", "c")]
    assert ordered(findings, b=("a",)) == [("b", ()), ("c", ()), ("a", ())]
    findings[0] = a_finding("a", confidence=Confidence.POSSIBLE, where=Where(ranks=(3,)))
    assert ordered(findings, b=("a",)) == [("a", ()), ("b", ()), ("c", ())]


def test_consequences_are_folded_under_the_root_over_several_steps() -> None:
    findings = [a_finding("c", Severity.ERROR), a_finding("b"), a_finding("a")]
    assert ordered(findings, a=("b",), b=("c",)) == [("a", ("c", "b"))]


def test_a_root_is_as_severe_as_what_follows_from_it() -> None:
    findings = [a_finding("b", Severity.ERROR), a_finding("a", Severity.NOTE)]
    results = [Result(check=finding.cause, findings=(finding,)) for finding in findings]
    (root,) = order(results, {"a": ("b",)})
    assert (root.cause, root.severity) == ("a", Severity.ERROR)


def test_nothing_is_folded_elsewhere_or_by_a_guess() -> None:
    here, there = Where(devices=("GPU 0",)), Where(devices=("GPU 1",))
    apart = [a_finding("a", where=here), a_finding("b", where=there)]
    assert len(ordered(apart, a=("b",))) == 2
    guess = [a_finding("a", confidence=Confidence.POSSIBLE), a_finding("b")]
    assert len(ordered(guess, a=("b",))) == 2


def test_two_that_explain_each_other_do_not_vanish() -> None:
    findings = [a_finding("a"), a_finding("b")]
    assert len(ordered(findings, a=("b",), b=("a",))) == 1


def test_the_same_words_about_several_hosts_are_one_finding() -> None:
    findings = [a_finding(where=Where(hosts=(host,))) for host in ("b", "a")]
    (merged,) = order([Result(check="a", findings=tuple(findings))], {})
    assert merged.where.hosts == ("a", "b")


def test_consequences_are_folded_under_the_root_of_their_own_host() -> None:
    findings = [
        replace(a_finding(cause, where=Where(hosts=(host,))), because=f"{cause} on {host}")
        for cause, hosts in (("b", "xyz"), ("a", "xy"))
        for host in hosts
    ]
    results = [Result(check=finding.cause, findings=(finding,)) for finding in findings]
    told = {one.because: one.consequences for one in order(results, {"a": ("b",)})}
    assert told == {"a on x": ("b",), "a on y": ("b",), "b on z": ()}


LIKELY, POSSIBLE, CERTAIN = Confidence.LIKELY, Confidence.POSSIBLE, Confidence.CERTAIN


@pytest.mark.parametrize(
    ("read", "measured", "then"),
    [
        (LIKELY, LIKELY, CERTAIN),
        (POSSIBLE, LIKELY, LIKELY),
        (LIKELY, POSSIBLE, POSSIBLE),
        (LIKELY, CERTAIN, CERTAIN),
    ],
)
def test_what_is_measured_replaces_what_is_read(
    read: Confidence, measured: Confidence, then: Confidence
) -> None:
    results = (
        Result(check="a: read", findings=(a_finding(confidence=read),)),
        Result(check="a: measured", findings=(a_finding(confidence=measured),)),
    )
    before, after = confirmed(results, {"a: read"})
    assert before.findings == ()
    assert [one.confidence for one in after.findings] == [then]


def test_what_was_not_measured_stays() -> None:
    results = (
        Result(check="a: read", findings=(a_finding(confidence=LIKELY),)),
        Result(check="b: measured", findings=(a_finding("b", confidence=LIKELY),)),
    )
    assert confirmed(results, {"a: read"}) == results


@pytest.mark.parametrize(
    ("severity", "check", "skipped", "then"),
    [
        (Severity.ERROR, "a (in a run)", None, POSSIBLE),
        (Severity.WARNING, "a (in a run)", None, LIKELY),
        (Severity.ERROR, "a (in a log)", "no log", LIKELY),
        (Severity.ERROR, "c (in a run)", None, LIKELY),
    ],
)
def test_what_a_failed_run_did_not_show_does_not_explain_its_failure(
    severity: Severity, check: str, skipped: str | None, then: Confidence
) -> None:
    results = (
        Result(check="a (read)", findings=(a_finding(confidence=LIKELY),)),
        Result(check=check, skipped=skipped),
        Result(check="b", findings=(a_finding("b", severity),)),
    )
    (finding,) = confirmed(results, {"a (read)"})[0].findings
    assert finding.confidence is then


@pytest.mark.parametrize(
    ("severity", "check", "skipped", "told"),
    [
        (Severity.NOTE, "a (in a live run)", None, False),
        (Severity.WARNING, "a (in a live run)", None, True),
        (Severity.NOTE, "a (in a live run)", "no samples", True),
        (Severity.NOTE, "c (in a live run)", None, True),
    ],
)
def test_a_note_of_what_was_seen_to_cost_nothing_is_left_out(
    severity: Severity, check: str, skipped: str | None, told: bool
) -> None:
    results = (
        Result(check="a (read)", findings=(a_finding("a", severity),)),
        Result(check=check, skipped=skipped),
    )
    assert bool(confirmed(results, {"a (read)"})[0].findings) is told
    assert confirmed(results, {"a (read)"}, fatal={"a"})[0].findings
