"""The pace of a rank over its whole run, from its tape, in memory of fixed size."""

from __future__ import annotations

import random
from itertools import pairwise

import psutil
import pytest

from ddoctor.recorder.tape import (
    CHECKPOINT,
    COUNTS,
    DONE,
    END_ROWS,
    EVALUATION,
    FORWARD,
    HEAD_BYTES,
    PHASES,
    ROW,
    ROWS,
    Tape,
)
from ddoctor.training.history import MOST_STRETCHES, History
from ddoctor.training.onset import Onsets


class Written:
    """A tape on which a script would write."""

    def __init__(self) -> None:
        self.tape, self.now, self.done = Tape(None), 100.0, 0

    def step(self, seconds: float, phases: dict[int, float] | None = None) -> None:
        """A step; with ``phases``, it is recorded, and not only counted."""
        begin, self.now = self.now, self.now + seconds
        self.tape.ends[self.done % END_ROWS] = self.now
        if phases is not None:
            cells = [phases.get(number, 0.0) for number in range(len(PHASES))]
            at = HEAD_BYTES + self.done % ROWS * ROW.size
            ROW.pack_into(
                *(self.tape.memory, at, self.done, begin, self.now, 0.0, *cells),
                *([0.0] * len(COUNTS)),
            )
        self.done += 1
        self.tape.head[DONE] = self.done


def rounded(steps: list[tuple[int, float]]) -> list[tuple[int, float]]:
    return [(number, round(seconds, 6)) for number, seconds in steps]


def test_each_step_is_told_once() -> None:
    written, history = Written(), History(90.0, lambda: 5.0)
    for seconds in (1.0, 0.1, 0.2):
        written.step(seconds)
    # The time before the first step is that of the start.
    assert rounded(history.read(written.tape)) == [(1, 0.1), (2, 0.2)]
    assert history.read(written.tape) == []
    written.step(0.3)
    assert rounded(history.read(written.tape)) == [(3, 0.3)]


def test_evaluation_and_checkpoint_are_no_part_of_a_step() -> None:
    written, history = Written(), History(90.0, lambda: 5.0)
    written.step(1.0)
    written.step(5.0, {FORWARD: 1.0, EVALUATION: 3.0, CHECKPOINT: 0.5})
    assert rounded(history.read(written.tape)) == [(1, 1.5)]


def test_a_stretch_tells_its_steps() -> None:
    written, history = Written(), History(90.0, lambda: 7.0)
    written.step(1.0)
    for seconds in (0.1, 0.2, 0.2, 0.4):
        written.step(seconds, {FORWARD: seconds})
    history.read(written.tape)
    (one,) = history.stretches()
    assert (one.first, one.last) == (1, 4)
    assert one.begin == pytest.approx(11.0)
    assert one.seconds == pytest.approx(0.9)
    assert one.fastest == pytest.approx(0.1, rel=0.02)
    assert one.median == pytest.approx(0.2, rel=0.02)
    assert one.slowest == pytest.approx(0.4, rel=0.02)
    assert one.phases == {"forward": 1.0}
    assert one.resident == 7.0
    assert history.last == one


def test_a_long_run_takes_no_more_memory() -> None:
    written, history = Written(), History(90.0, lambda: 7.0)
    for _ in range(40):
        for _ in range(2000):
            written.step(0.01)
        history.read(written.tape)
    stretches = history.stretches()
    assert MOST_STRETCHES // 2 <= len(stretches) <= MOST_STRETCHES
    assert stretches[0].first == 1
    assert stretches[-1].last == 40 * 2000 - 1
    pairs = pairwise(stretches)
    assert all(one.last + 1 == other.first for one, other in pairs)
    assert all(one.median == pytest.approx(0.01, rel=0.02) for one in stretches)


@pytest.mark.ward
@pytest.mark.timeout(1800)
def test_ten_million_steps_take_no_more_memory_than_the_first() -> None:
    drawn, process = random.Random(7), psutil.Process()
    written, history, onsets = Written(), History(90.0, lambda: 7.0), Onsets()

    def train(rounds: int) -> float:
        for _ in range(rounds):
            for _ in range(2000):
                written.step(drawn.uniform(0.004, 0.006))
            for step, seconds in history.read(written.tape):
                onsets.add(step, seconds)
        return process.memory_info().rss / 2**20

    first = train(100)
    last = train(4900)
    assert written.done == 10_000_000
    assert history.stretches()[-1].last == written.done - 1
    assert last - first < 10


def test_steps_that_nobody_read_in_time_are_left_out() -> None:
    written, history = Written(), History(90.0, lambda: 7.0)
    for _ in range(END_ROWS + 100):
        written.step(0.01)
    told = history.read(written.tape)
    assert len(told) == END_ROWS // 2 - 1
    assert all(seconds == pytest.approx(0.01) for _, seconds in told)
    assert told[-1][0] == END_ROWS + 99
