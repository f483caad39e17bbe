"""A whole run in the reports: where its time went, and what happened in it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec.structs import replace as changed

from ddoctor import engine
from ddoctor.evidence.run_history import RankHistory, RunEvent, RunHistory
from ddoctor.evidence.section import Evidence
from ddoctor.evidence.training import RankFlags, RankUse
from ddoctor.report import html, markdown, run_history
from ddoctor.report.run_history import END, LOST, START, clock, spent
from tests.whole_run import HISTORY, SLOWER, stretch

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
    found = run_history.events(HISTORY, EVIDENCE)
    assert [row[1] for row in found.rows] == ["120", "120", "300"]
    assert "slower: 1.00 s → 1.50 s, loader" in found.rows[0]
    assert "rank 1" in found.rows[0]


def test_the_cost_counts_for_every_rank() -> None:
    # 90 s on two ranks.
    (cost,) = (row[4] for row in run_history.events(HISTORY, EVIDENCE).rows if row[4])
    assert cost.replace("\N{NO-BREAK SPACE}", " ") == "1 min 30 s, 0.05 rank hours"
    flags = tuple(RankFlags(rank=rank, device_name="H100") for rank in range(2))
    on_gpus = Evidence([HISTORY, RankUse(host="a", hosts=(), flags=flags)])
    assert any("GPU hours" in row[4] for row in run_history.events(HISTORY, on_gpus).rows)


def own_work(*ranks: tuple[float, ...]) -> RunHistory:
    """Ranks that spend these shares of each stretch in their own work."""
    return changed(
        HISTORY,
        ranks=tuple(
            RankHistory(
                rank=rank,
                host="a",
                stretches=tuple(
                    stretch(number, forward=share, collective=1 - share)
                    for number, share in enumerate(shares)
                ),
            )
            for rank, shares in enumerate(ranks)
        ),
    )


def test_a_rank_that_is_slow_for_a_while() -> None:
    found = run_history.uneven(own_work((0.5, 0.5, 0.5), (0.5, 0.9, 0.5), (0.5, 0.5, 0.5)))
    assert found is not None
    assert found.ranks == (0, 1, 2)
    assert found.edges == (10.0, 110.0, 210.0, 310.0)
    assert found.shares[1] == pytest.approx((1.0, 1.8, 1.0))
    assert found.shares[0] == found.shares[2] == (1.0, 1.0, 1.0)


def test_of_many_ranks_the_slow_ones_are_shown() -> None:
    found = run_history.uneven(own_work(*[(0.4, 0.4)] * 98, (0.4, 0.8), (0.4, 0.6)))
    assert found is not None
    assert len(found.ranks) == 64
    assert found.ranks[-2:] == (98, 99)


@pytest.mark.parametrize(
    "ranks",
    [
        [(0.5, 0.5)],
        [(0.5, 0.9), (0.5, 0.9)],
        [(0.5, 0.55), (0.55, 0.5)],
        [(0.0, 0.0), (0.0, 0.0)],
    ],
    ids=["one rank", "slower together", "noise", "nothing but waiting"],
)
def test_ranks_that_need_the_same(ranks: list[tuple[float, ...]]) -> None:
    history = own_work(*ranks)
    assert run_history.uneven(history) is None
    report = replace(engine.examine(Evidence([history]), "run"), findings=())
    assert "Heat map of the ranks" not in html.render(report, Evidence([history]))


def test_ranks_whose_stretches_differ() -> None:
    history = own_work((0.5, 0.5, 0.5, 0.5), (0.5, 0.9))
    found = run_history.uneven(history)
    assert found is not None
    # The last one of rank 1 stands for the steps after it.
    assert found.shares[1] == pytest.approx((1.0, 1.8, 1.8, 1.8))
    report = replace(engine.examine(Evidence([history]), "run"), findings=())
    page = html.render(report, Evidence([history]))
    assert "Heat map of the ranks" in page
    assert "memory of the ranks over the time" in page


def test_of_many_events_the_last_are_shown() -> None:
    many = tuple(changed(SLOWER, step=number) for number in range(100))
    found = run_history.events(changed(HISTORY, events=many), EVIDENCE)
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


HUNG = changed(SLOWER, event="hung", step=120, seconds=170.0, lost_seconds=40.0)


@pytest.mark.parametrize(
    ("events", "lost", "after"),
    [
        # From 130 s to 180 s, in a stretch of rank 0's forward and collective time.
        ((HUNG, changed(HUNG, event="resumed", seconds=180.0, lost_seconds=50.0)), 50.0, 10.0),
        # It begins 3 s before the last step's end, and lasts to the end of the run.
        ((changed(HUNG, seconds=417.0, lost_seconds=10.0),), 13.0, 0.0),
        ((), 0.0, 10.0),
    ],
)
def test_what_hangs_took(events: tuple[RunEvent, ...], lost: float, after: float) -> None:
    parts = spent(changed(HISTORY, events=events))
    assert parts.get(LOST, 0.0) == pytest.approx(lost)
    assert parts.get(END, 0.0) == pytest.approx(after)
    assert sum(parts.values()) == pytest.approx(HISTORY.seconds)
