"""When rank 0 asks all ranks about a change of pace."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import cast

import pytest

from ddoctor.training.events import Events
from ddoctor.training.gathering import Gathering
from ddoctor.training.messages import Record
from ddoctor.training.pace import BEFORE_STEPS, Pace


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
    steps(30, 0.034)
    assert len(late.asked) == 1
    steps(150, 0.028)
    late.ready = answers == "before the next change"
    steps(20, 0.056)
    late.ready = late.asking
    steps(20, 0.056)
    assert late.asked[1] == pytest.approx(480 - BEFORE_STEPS, abs=5)
