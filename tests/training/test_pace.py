"""When rank 0 asks all ranks about a change of pace, and when it reports one."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import cast

import pytest
from msgspec.structs import replace

from ddoctor.recorder.tape import FORWARD, LOADER
from ddoctor.training.events import Events
from ddoctor.training.gathering import Gathering
from ddoctor.training.messages import Record
from ddoctor.training.pace import BEFORE_STEPS, Pace
from tests.training.test_change import CHANGE, one_slow, record


class Late:
    """Ranks that answer only when the test says so."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.asking = self.ready = False

    def ask(self, first: int, *, stack: bool = False) -> None:
        assert not self.asking
        self.asked.append(first)
        self.asking = True

    def answers(self) -> Sequence[Record] | None:
        if not self.ready:
            return None
        self.asking = self.ready = False
        return []


@pytest.mark.parametrize("answers", ["before the next change", "after the next change"])
def test_a_change_that_was_over_before_the_answers_hides_no_later_one(answers: str) -> None:
    late, chance, step, now = Late(), random.Random(0), 0, 0.0
    pace = Pace(cast(Gathering, late), ("train.py",), cast(Events, None))

    def steps(count: int, seconds: float) -> None:
        nonlocal step, now
        for _ in range(count):
            took = seconds * chance.uniform(0.99, 1.01)
            step, now = step + 1, now + took
            pace.look(now, [(step, took)])

    steps(300, 0.028)
    assert late.asked == []
    # Within the first second and a half, it may be a wobble.
    steps(40, 0.034)
    assert late.asked == []
    steps(20, 0.034)
    assert len(late.asked) == 1
    steps(150, 0.028)
    late.ready = answers == "before the next change"
    steps(20, 0.056)
    late.ready = late.asking
    steps(20, 0.056)
    assert late.asked[1] == pytest.approx(510 - BEFORE_STEPS, abs=5)


class Quick:
    """Ranks that answer at once, with all of their steps."""

    def __init__(self, records: Sequence[Record]) -> None:
        self._records, self.asking, self.asked = records, False, 0

    def ask(self, first: int, *, stack: bool = False) -> None:
        self.asking = True
        self.asked += 1

    def answers(self) -> Sequence[Record]:
        self.asking = False
        return self._records


def reported(slow: int, more: int, forward: float = 0.036, **fields: float) -> list[str]:
    """The events of a run with so many slow steps of 38 ms instead of 22 ms, and more fast ones."""
    phases = {False: {FORWARD: 0.02, LOADER: 0.001}, True: {FORWARD: forward, LOADER: 0.001}}
    records = [
        record(rank, lambda rank, step: phases[rank == 1 and step >= CHANGE], **fields)
        for rank in range(2)
    ]
    events, now = Events(None, "", 0), 0.0
    pace = Pace(cast(Gathering, Quick(records)), ("train.py",), events)
    for number, row in enumerate(records[0].rows[: CHANGE + slow] + records[0].rows[:more]):
        now += row.end - row.begin
        pace.look(now, [(number, row.end - row.begin)])
    return [one.event for one in events.all]


def later(one: Record, steps: int) -> Record:
    """The same record, so many steps later."""
    rows = (replace(row, number=row.number + steps) for row in one.rows)
    return replace(one, rows=tuple(rows))


def test_a_large_change_is_reported_within_a_second() -> None:
    assert reported(15, 0) == []
    assert reported(26, 0) == ["slower"]


def test_a_change_that_is_over_is_not_reported() -> None:
    # Those that are asked for it do not know that yet.
    assert reported(16, 10) == []


def test_a_change_that_settles_below_a_tenth_is_none() -> None:
    answers = Quick([later(record(rank, one_slow), 200) for rank in range(2)])
    events, now, step = Events(None, "", 0), 0.0, 0
    pace = Pace(cast(Gathering, answers), ("train.py",), events)
    for count, seconds in ((300, 0.05), (13, 0.0552), (400, 0.053)):
        for _ in range(count):
            now, step = now + seconds, step + 1
            pace.look(now, [(step, seconds)])
    assert events.all == []
    # Nor are the ranks asked about it again and again.
    assert answers.asked <= 3


def test_a_transfer_is_slower_for_a_while_where_others_use_the_cpus() -> None:
    assert reported(90, 0, forward=0.02, transfer=0.017) == ["slower"]
    assert reported(90, 0, forward=0.02, transfer=0.017, others=4.0) == []


def test_what_a_rank_does_itself_is_reported_at_once_all_the_same() -> None:
    assert reported(90, 0, others=4.0) == ["slower"]
    assert reported(90, 0, others=4.0, queued=0.008) == []
