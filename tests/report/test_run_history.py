"""A whole run in the reports: where its time went, and what happened in it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec.structs import replace as changed

from ddoctor import engine
from ddoctor.evidence.run_history import RankHistory, RunHistory
from ddoctor.evidence.section import Evidence
from ddoctor.report import html, markdown, run_history
from ddoctor.report.run_history import END, START, clock, spent
from tests.whole_run import HISTORY, SLOWER

EVIDENCE = Evidence([HISTORY])


def test_all_time_is_accounted_for() -> None:
    parts = spent(HISTORY)
    assert sum(parts.values()) == pytest.approx(HISTORY.seconds)
    assert parts[START] == pytest.approx(10.0)
    assert parts[END] == pytest.approx(10.0)
    # What the rank with the least of it spends in collectives is the transfer.
    assert parts["transfer"] == pytest.approx(120.0)
    assert parts["waiting"] == pytest.approx(40.0)
    assert parts["forward"] == pytest.approx(240.0)


def test_the_head_of_the_report() -> None:
    rows = dict(run_history.rows(EVIDENCE))
    assert rows["whole run"].replace("\N{NO-BREAK SPACE}", " ") == "7 min 0 s, 401 steps"
    assert rows["its time"].startswith("57 % forward, 29 % transfer, 10 % waiting")


def test_what_happened_is_a_row_each_without_the_end() -> None:
    found = run_history.events(HISTORY)
    assert [row[1] for row in found.rows] == ["120", "120", "300"]
    assert "slower: 1.00 s → 1.50 s, loader" in found.rows[0]
    assert "rank 1" in found.rows[0]


def test_of_many_events_the_last_are_shown() -> None:
    many = tuple(changed(SLOWER, step=number) for number in range(100))
    found = run_history.events(changed(HISTORY, events=many))
    assert [row[1] for row in found.rows] == [str(number) for number in range(60, 100)]


def test_the_page_and_the_markdown_tell_it_and_escape_it() -> None:
    report = replace(engine.examine(EVIDENCE, "run"), findings=())
    page, text = html.render(report, EVIDENCE), markdown.render(report, EVIDENCE)
    assert "The run from start to end" in page
    assert "<svg" in page
    assert "<b>loader</b>" not in page
    assert "## What happened" in text


def test_a_run_without_steps_has_no_history_to_show() -> None:
    empty = RunHistory(ranks=(RankHistory(rank=0, host="a", stretches=()),), seconds=3.0)
    assert not list(run_history.rows(Evidence([empty])))
    assert not list(run_history.histories(Evidence([])))


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0.0, "0.0 s"), (41.23, "41.2 s"), (725.0, "12 min 5 s"), (11240.0, "3 h 7 min")],
)
def test_durations(seconds: float, told: str) -> None:
    assert clock(seconds).replace("\N{NO-BREAK SPACE}", " ") == told
