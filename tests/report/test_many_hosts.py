"""A report of many hosts stays one that a person reads: groups and outliers, never every rank."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import msgspec
import pytest
from rich.console import Console

from ddoctor import engine
from ddoctor.evidence.host import Cpus
from ddoctor.evidence.section import Evidence
from ddoctor.models import Crashed, Finding, Observation, Report, Verdict, Where
from ddoctor.report import html, markdown, ranks, repeats, schema, terminal
from ddoctor.report.facts import facts
from ddoctor.report.hosts import CLOSE_UP, SIDE_BY_SIDE, close_up, host_table
from ddoctor.report.ranks import comparisons
from tests.many_hosts import fleet, name, planted
from tests.report import sample

HOSTS = 128


@pytest.fixture(scope="module")
def evidence() -> Evidence:
    return fleet(HOSTS, planted(HOSTS))


@pytest.fixture(scope="module")
def report(evidence: Evidence) -> Report:
    return engine.examine(evidence, "diagnose")


def on_terminal(report: Report, evidence: Evidence) -> str:
    text = StringIO()
    terminal.render(report, evidence, Console(file=text, width=100))
    return text.getvalue()


def on_many(finding: Finding, count: int) -> tuple[Finding, ...]:
    return tuple(
        replace(finding, because=f"number {n}", where=Where(hosts=(name(n),), ranks=(8 * n,)))
        for n in range(count)
    )


def test_hosts_that_differ_are_told_apart_and_the_others_counted(evidence: Evidence) -> None:
    other = name(planted(HOSTS)[4].host)
    lines = [fact.text for fact in facts(evidence) if fact.label == "software"]
    assert [line.partition("NCCL ")[2] for line in lines] == [
        "2.27.3 (127 hosts)",
        f"2.26.2 ({other})",
    ]
    assert facts(evidence)[0].text == "128 hosts (node-[0000-0127])"


def test_facts_stay_few_however_much_hosts_differ(evidence: Evidence) -> None:
    uneven = (
        msgspec.structs.replace(cpus, logical=200 + number)
        for number, cpus in enumerate(evidence.all(Cpus))
    )
    lines = [fact.text for fact in facts(evidence.with_sections(*uneven)) if fact.label == "CPUs"]
    assert len(lines) == 4
    assert lines[-1] == "in 125 other ways on 125 hosts (node-[0003-0127])"


def test_the_slowest_rank_is_named_with_its_host(evidence: Evidence) -> None:
    hot = name(planted(HOSTS)[1].host)
    (matmul,) = (fact.text for fact in facts(evidence) if fact.label == "matmul")
    assert matmul.endswith(f"slowest {hot} cuda:3")


def test_of_many_ranks_those_that_stand_apart_are_shown(evidence: Evidence) -> None:
    table = ranks.table(comparisons(evidence))
    slow = [fault for fault in planted(HOSTS) if fault.matmul < 1]
    assert [row for row, _ in table.rows] == [f"{name(fault.host)} cuda:3" for fault in slow]
    assert (table.total, table.apart) == (8 * HOSTS, len(slow))
    assert [label for label, _ in table.spread] == ["lowest", "1 %", "10 %", "90 %", "highest"]


def test_of_few_ranks_all_are_shown() -> None:
    table = ranks.table(comparisons(fleet(8)))
    assert len(table.rows) == 64
    assert table.spread == ()


def test_only_the_hosts_that_findings_name_are_shown_in_detail(
    report: Report, evidence: Evidence
) -> None:
    near = close_up(report, evidence)
    assert len(near) == CLOSE_UP
    assert set(near) <= {name(fault.host) for fault in planted(HOSTS)}
    assert len(close_up(report, fleet(SIDE_BY_SIDE))) == SIDE_BY_SIDE


def test_only_hosts_that_differ_have_a_row(evidence: Evidence) -> None:
    table = host_table(evidence)
    assert [host for host, *_ in table.rows] == [name(planted(HOSTS)[4].host)]
    assert table.head == ("host", "software")
    assert host_table(fleet(SIDE_BY_SIDE + 1)).rows == ()
    assert len(host_table(fleet(SIDE_BY_SIDE)).rows) == SIDE_BY_SIDE


def test_no_face_grows_with_the_hosts(report: Report, evidence: Evidence) -> None:
    few = fleet(32, planted(32))
    small = engine.examine(few, "diagnose")
    assert len(on_terminal(report, evidence)) < 1.2 * len(on_terminal(small, few))
    assert len(markdown.render(report, evidence)) < 1.2 * len(markdown.render(small, few))
    assert len(html.render(report, evidence)) < 1.2 * len(html.render(small, few))


def test_a_cause_on_many_hosts_is_shown_a_few_times_and_counted() -> None:
    many = sample.report(*on_many(sample.HOT, 100), sample.CAPPED, verdict=Verdict.FINDINGS)
    for text in (
        on_terminal(many, Evidence()),
        markdown.render(many, Evidence()),
        html.render(many, Evidence()),
    ):
        assert "and 97 more of gpu-thermal-throttling" in text
        assert "number 2" in text
        assert "number 3" not in text
    assert [one.number for one in repeats.shown(many)] == [1, 2, 3, 101]
    assert "number 99" in schema.render(many)


def test_four_of_a_cause_are_shown() -> None:
    few = sample.report(*on_many(sample.HOT, 4), verdict=Verdict.FINDINGS)
    assert len(repeats.shown(few)) == 4
    assert not any(map(str, repeats.shown(few)))


def test_rows_of_evidence_are_cut_and_counted() -> None:
    rows = tuple(Observation(name=f"clock of {name(n)}", value="loose") for n in range(500))
    many = sample.report(replace(sample.CAPPED, evidence=rows), verdict=Verdict.FINDINGS)
    for text in (
        on_terminal(many, Evidence()),
        markdown.render(many, Evidence()),
        html.render(many, Evidence()),
    ):
        assert "and 488 more rows of evidence" in text
        assert name(100) not in text


def test_failures_of_one_kind_are_counted() -> None:
    same = (Crashed(check="collect disks", error="no answer within 15 s"),) * 300
    others = tuple(Crashed(check=f"probe {n}", error="hung") for n in range(30))
    many = sample.report(verdict=Verdict.INCOMPLETE, crashed=(*others, *same))
    told = repeats.failed(many)
    assert told[0].check == "collect disks (300 times)"
    assert told[-1].error == "19 other failures"
    assert len(told) == repeats.ROWS + 1
