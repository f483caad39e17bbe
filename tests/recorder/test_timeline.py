"""The time line: every moment of the main thread is in one phase, and in no other."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from ddoctor.recorder import timeline as module
from ddoctor.recorder.tape import (
    BACKWARD,
    COLLECTIVE,
    DONE,
    FORWARD,
    LOADER,
    MEETINGS,
    OPTIMIZER,
    PHASE,
    PHASES,
    REST,
    Tape,
)
from ddoctor.recorder.timeline import DEEPEST, SHORT_SECONDS, Timeline


class Clock:
    """Goes on by a whole number of seconds when it is told to: sums of them are exact."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "perf_counter", clock)
    return clock


@pytest.fixture
def tape(tmp_path: Path) -> Tape:
    return Tape(tmp_path / "tape", create=True)


def phases(tape: Tape) -> list[dict[str, float]]:
    return [
        {name: one for name, one in zip(PHASES, row.phases, strict=True) if one}
        for row in tape.rows()
    ]


def test_a_phase_within_another_has_its_time_for_itself(clock: Clock, tape: Tape) -> None:
    timeline = Timeline(tape)
    clock.now += 1
    timeline.enter(FORWARD)
    clock.now += 2
    began = timeline.enter(COLLECTIVE)
    clock.now += 4
    assert timeline.leave() - began == 4
    clock.now += 8
    timeline.leave()
    clock.now += 16
    timeline.end_step()
    assert phases(tape) == [{"rest": 17, "forward": 10, "collective": 4}]


def test_the_phases_are_the_step(clock: Clock, tape: Tape) -> None:
    """Whatever is entered and left, also over the edge of a step."""
    timeline = Timeline(tape)
    chosen = random.Random(7)
    for _ in range(2000):
        clock.now += chosen.randrange(5)
        match chosen.randrange(7):
            case 0 | 1 | 2:
                timeline.enter(chosen.randrange(len(PHASES)))
            case 3 | 4 | 5:
                timeline.leave()
            case _:
                timeline.end_step()
    rows = list(tape.rows())
    assert len(rows) > 100
    assert all(sum(row.phases) == row.end - row.begin for row in rows)
    assert all(one.end == following.begin for one, following in pairwise(rows))


def test_a_phase_over_the_edge_of_a_step_is_in_both(clock: Clock, tape: Tape) -> None:
    timeline = Timeline(tape)
    timeline.enter(BACKWARD)
    clock.now += 3
    timeline.end_step()
    clock.now += 5
    timeline.leave()
    timeline.end_step()
    assert phases(tape) == [{"backward": 3}, {"backward": 5}]


def test_an_exception_leaves_what_it_passed(clock: Clock, tape: Tape) -> None:
    timeline = Timeline(tape)
    timeline.enter(LOADER)
    depth = len(timeline.open)
    timeline.enter(FORWARD)
    timeline.enter(COLLECTIVE)
    clock.now += 2
    timeline.unwind(depth)
    clock.now += 4
    timeline.leave()
    timeline.end_step()
    assert phases(tape) == [{"collective": 2, "loader": 4}]
    assert timeline.phase == REST


def test_phases_that_nobody_leaves_do_not_pile_up(tape: Tape) -> None:
    timeline = Timeline(tape)
    for _ in range(10 * DEEPEST):
        timeline.enter(OPTIMIZER)
        timeline.end_step()
    assert len(timeline.open) <= DEEPEST


def test_too_many_leaves_do_no_harm(tape: Tape) -> None:
    timeline = Timeline(tape)
    timeline.leave()
    timeline.leave()
    assert timeline.phase == tape.head[PHASE] == REST


def test_of_many_short_steps_one_in_eight_is_recorded(clock: Clock, tape: Tape) -> None:
    timeline = Timeline(tape)
    for _ in range(300):
        clock.now += SHORT_SECONDS / 2
        timeline.enter(COLLECTIVE)
        timeline.meeting(timeline.last, 0.25, 0.0, 3.0)
        timeline.leave()
        timeline.end_step()
    assert timeline.done == tape.head[DONE] == 300
    assert timeline.busy == -1
    rows = list(tape.rows())
    assert [row.number for row in rows] == [*range(32), *range(127, 143), *range(254, 270)]
    assert all(len(row.meetings) == 1 for row in rows)
    assert all(row.end - row.begin == pytest.approx(SHORT_SECONDS / 2) for row in rows)


def test_a_first_step_that_takes_long_does_not_count(clock: Clock, tape: Tape) -> None:
    timeline = Timeline(tape)
    clock.now += 60.0
    for _ in range(200):
        clock.now += SHORT_SECONDS / 2
        timeline.end_step()
    assert timeline.busy == -1


def test_steps_that_become_longer_are_all_recorded_again(clock: Clock, tape: Tape) -> None:
    timeline = Timeline(tape)
    for step in range(600):
        clock.now += SHORT_SECONDS / 2 if step < 100 or step > 400 else SHORT_SECONDS * 2
        timeline.end_step()
    rows = [row.number for row in tape.rows()]
    # At the end of each row anew: the one from 381 on was the last of longer ones.
    assert rows == [*range(32), *range(105, 524)]


def recorded(clock: Clock, tape: Tape, seconds: Callable[[int], float]) -> list[int]:
    """The recorded ones of 300 steps that take so long."""
    timeline = Timeline(tape)
    for step in range(300):
        clock.now += seconds(step)
        timeline.end_step()
    return [row.number for row in tape.rows()]


@pytest.mark.parametrize(
    ("since", "rows"),
    [(40, [*range(45, 61), *range(127, 143)]), (112, range(117, 143)), (130, range(127, 143))],
)
def test_short_steps_that_become_a_little_longer_are_recorded_at_once(
    clock: Clock, tape: Tape, since: int, rows: Sequence[int]
) -> None:
    found = recorded(clock, tape, lambda step: 0.01 * (1.15 if step >= since else 1.0))
    # They are the usual ones from then on.
    assert found == [*range(32), *rows, *range(254, 270)]


def test_a_run_that_varies_has_one_more_row_between_two_regular_ones(
    clock: Clock, tape: Tape
) -> None:
    found = recorded(clock, tape, lambda step: 0.014 if step // 12 % 2 else 0.01)
    regular, others = (*range(32), *range(127, 143), *range(254, 270)), (41, 161, 281)
    assert found == sorted([*regular, *(row for one in others for row in range(one, one + 16))])


@pytest.mark.parametrize("every", [2, 5, 50])
def test_a_long_step_now_and_then_is_not_recorded(clock: Clock, tape: Tape, every: int) -> None:
    found = recorded(clock, tape, lambda step: 0.01 if step % every else 0.019)
    assert found == [*range(32), *range(127, 143), *range(254, 270)]


def test_of_longer_steps_all_are_recorded(clock: Clock, tape: Tape) -> None:
    timeline = Timeline(tape)
    for _ in range(1100):
        clock.now += SHORT_SECONDS * 2
        timeline.end_step()
    assert [row.number for row in tape.rows()] == [*range(1100)]
    assert timeline.busy == timeline.main


def test_a_forked_child_writes_nothing(tape: Tape) -> None:
    timeline = Timeline(tape)
    timeline.end_step()

    def scribble() -> None:
        assert not timeline.here()
        timeline.enter(BACKWARD)
        timeline.meeting(1.0, 1.0, 0.0, 3.0)
        timeline.end_step()

    assert _in_a_child(scribble) == 0
    assert (tape.head[DONE], tape.head[MEETINGS], tape.head[PHASE]) == (1, 0, REST)
    timeline.end_step()
    assert [row.number for row in tape.rows()] == [0, 1]


def test_another_thread_is_not_recorded(tape: Tape) -> None:
    timeline = Timeline(tape)
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(timeline.here()))
    thread.start()
    thread.join()
    assert (found, timeline.here()) == ([False], True)


def _in_a_child(call: Callable[[], None]) -> int:
    """Its exit code, 1 where it raises."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            call()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
