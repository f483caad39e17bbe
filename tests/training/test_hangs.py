"""When a run that takes no step hangs, and when it only evaluates, saves or works."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ddoctor.recorder.tape import COLLECTIVE, EVALUATION, REST
from ddoctor.training.hangs import Hangs
from ddoctor.training.messages import Now

STEP_SECONDS = 0.5
STEPS = 20
BEGAN = STEPS * STEP_SECONDS

States = Callable[[float], list[Now]]


def state(
    phase: int, age: float, *, busy: bool = False, over: bool = False, stopped: bool = False
) -> Now:
    return Now(
        steps=STEPS,
        phase=phase,
        age=age,
        doing="",
        busy=busy,
        over=over,
        exit_code=0 if over else None,
        host="a",
        pid=1,
        stopped=stopped,
    )


def told_after(states: States, limit: float = 2000.0, hangs: Hangs | None = None) -> float | None:
    """Seconds without a step until it is told; ``states``: of all ranks after so many seconds."""
    hangs = hangs or Hangs(0.0)
    for step in range(1, STEPS + 1):
        moving = [state(REST, 0.1, busy=True)] * 2
        assert not hangs.look(step * STEP_SECONDS, step, dict(enumerate(moving)))
    seconds = 0.0
    while seconds < limit:
        seconds += 1.0
        if hangs.look(BEGAN + seconds, STEPS, dict(enumerate(states(seconds)))):
            return seconds
    return None


def test_all_wait_in_collectives() -> None:
    found = told_after(lambda s: [state(COLLECTIVE, s), state(COLLECTIVE, s, busy=True)])
    assert found is not None
    assert 30 < found <= 33


def test_one_sleeps_and_the_other_waits_for_it() -> None:
    found = told_after(lambda s: [state(COLLECTIVE, s), state(REST, s)])
    assert found is not None
    assert 30 < found <= 33


def test_all_spin_as_callers_of_nccl_do() -> None:
    found = told_after(lambda s: [state(REST, s, busy=True), state(REST, s, busy=True)])
    assert found is not None
    assert 60 < found <= 63


def test_one_works_for_long_while_the_others_wait() -> None:
    found = told_after(lambda s: [state(REST, s, busy=True), state(COLLECTIVE, s)])
    assert found is not None
    assert 540 < found < 600


def test_an_evaluation_that_begins_new_batches_never_hangs() -> None:
    assert told_after(lambda s: [state(EVALUATION, s % 5, busy=True)] * 2) is None


def test_a_slow_disk_that_delivers_never_hangs() -> None:
    assert told_after(lambda s: [state(REST, s % 20)] * 2) is None


def test_a_stopped_rank_is_its_users_choice() -> None:
    assert told_after(lambda s: [state(REST, s, stopped=True), state(COLLECTIVE, s)]) is None


def test_a_rank_that_has_ended_does_not_count() -> None:
    assert told_after(lambda s: [state(REST, s, over=True), state(REST, s % 5)]) is None


def test_a_start_that_takes_long_is_no_hang() -> None:
    hangs = Hangs(0.0)
    for second in range(1000):
        assert not hangs.look(float(second), 0, {0: state(REST, float(second))})


def test_a_start_in_which_all_wait_for_each_other_is_one() -> None:
    hangs = Hangs(0.0)
    told = [hangs.look(float(s), 0, {0: state(COLLECTIVE, float(s))}) for s in range(60)]
    assert any(told)


@pytest.mark.parametrize("pause", [20.0, 60.0, 200.0])
def test_a_pause_of_the_run_before_teaches_how_long_is_usual(pause: float) -> None:
    hangs = Hangs(0.0)
    waiting = {rank: state(COLLECTIVE, 1.0) for rank in range(2)}
    assert not hangs.look(1.0, 1, waiting)
    assert not hangs.look(1.0 + pause, 2, waiting)
    began = 1.0 + pause
    found = None
    for second in range(1, 2000):
        still = {rank: state(COLLECTIVE, 1.0 + pause + second) for rank in range(2)}
        if hangs.look(began + second, 2, still):
            found = second
            break
    assert found is not None
    assert found >= max(30, 3 * pause)


def test_it_is_over_with_the_next_step() -> None:
    hangs = Hangs(0.0)
    assert told_after(lambda s: [state(COLLECTIVE, s)] * 2, hangs=hangs) is not None
    assert hangs.hung
    assert not hangs.look(BEGAN + 50, STEPS + 1, {0: state(REST, 0.1)})


def test_time_in_which_nothing_was_looked_at_does_not_count() -> None:
    hangs = Hangs(0.0)
    assert not hangs.look(1.0, 1, {0: state(COLLECTIVE, 0.5)})
    hangs.wait_longer(1000.0)
    assert not hangs.look(1002.0, 1, {0: state(COLLECTIVE, 1001.5)})
