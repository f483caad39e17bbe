"""Changes of pace in series of step times, as machines make them, and none in the others."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import pytest

from ddoctor.training.onset import Change, Onsets

STEPS = 3000


def seconds(seed: int, noise: float, wobble: float = 0.01, rare: float = 0.01) -> Iterator[float]:
    """Steps of 1 s that vary by chance, wobble for a while, and are rarely far longer."""
    chance, drift = random.Random(seed), 0.0
    while True:
        drift = 0.9 * drift + chance.gauss(0, wobble)
        step = max(0.3, (1 + drift) * math.exp(chance.gauss(0, noise)))
        yield step * (chance.uniform(1.5, 8) if chance.random() < rare else 1)


def first(onsets: Onsets, steps: list[tuple[int, float]]) -> tuple[int, Change] | None:
    """The step at which the first change is told, and the change."""
    for number, one in steps:
        if (change := onsets.add(number, one)) is not None:
            return number, change
    return None


def slowed(seed: int, noise: float, at: int, factor: float, more: int) -> list[tuple[int, float]]:
    rows = zip(range(at + more), seconds(seed, noise), strict=False)
    return [(number, one * (factor if number >= at else 1)) for number, one in rows]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("noise", [0.01, 0.04])
@pytest.mark.parametrize(("factor", "within"), [(1.15, 30), (1.5, 12), (3.0, 12)])
def test_a_slowdown_is_told_in_time(seed: int, noise: float, factor: float, within: int) -> None:
    at = random.Random(seed).randrange(300, 2000)
    found = first(Onsets(), slowed(seed, noise, at, factor, within))
    assert found is not None
    assert found[1].factor == pytest.approx(factor, rel=0.12)


@pytest.mark.parametrize("seed", range(5))
def test_the_step_of_a_large_slowdown_is_told(seed: int) -> None:
    at = 500 + 37 * seed
    found = first(Onsets(), slowed(seed, 0.02, at, 1.5, 40))
    assert found is not None
    assert abs(found[1].step - at) <= 5


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("noise", [0.0, 0.01, 0.04, 0.25])
def test_chance_is_no_change(seed: int, noise: float) -> None:
    rows = list(zip(range(STEPS), seconds(100 + seed, noise), strict=False))
    assert first(Onsets(), rows) is None


@pytest.mark.parametrize("every", [50, 100, 333])
def test_long_steps_at_intervals_are_no_change(every: int) -> None:
    rows = zip(range(STEPS), seconds(7, 0.02), strict=False)
    found = first(Onsets(), [(n, one * (20 if n % every == 0 else 1)) for n, one in rows])
    assert found is None


def test_a_warm_up_is_no_change() -> None:
    rows = zip(range(STEPS), seconds(8, 0.02), strict=False)
    assert first(Onsets(), [(n, one * (1 + 5 / (1 + n))) for n, one in rows]) is None


@pytest.mark.parametrize("seed", range(5))
def test_a_warm_up_hides_no_later_change(seed: int) -> None:
    rows = slowed(seed, 0.03, 352, 1.15, 60)
    warm = [(number, one * (1 + 8 / (1 + number))) for number, one in rows]
    found = first(Onsets(), warm)
    assert found is not None
    assert found[0] >= 352


def test_a_few_slow_steps_are_no_change() -> None:
    rows = zip(range(STEPS), seconds(9, 0.02), strict=False)
    found = first(Onsets(), [(n, one * (2 if 700 <= n < 708 else 1)) for n, one in rows])
    assert found is None


def test_what_becomes_faster_is_no_change() -> None:
    assert first(Onsets(), slowed(10, 0.02, 500, 0.5, 800)) is None


@pytest.mark.parametrize("more", [100, 200, 400])
def test_a_change_that_is_settled_late_keeps_its_step(more: int) -> None:
    onsets = Onsets()
    rows = slowed(1, 0.01, 500, 1.5, more)
    changes = [change for row in rows if (change := onsets.add(*row)) is not None]
    early, late = changes[0], onsets.settled(changes[0])
    assert abs(early.step - 500) <= 5
    assert late.step == early.step
    assert late.factor == pytest.approx(1.5, rel=0.05)


def test_a_change_that_follows_a_wobble_begins_where_it_is_large() -> None:
    onsets = Onsets()
    steps = (*[1.0] * 400, *[1.12] * 40, *[1.5] * 90)
    rows = [(number, one) for number, one in enumerate(steps)]
    changes = [change for row in rows if (change := onsets.add(*row)) is not None]
    assert changes[0].step == 400
    assert onsets.settled(changes[0]).step == 440


def test_after_a_change_the_next_one_is_told_against_the_new_pace() -> None:
    onsets = Onsets()
    rows = [(n, one * (1.5 if n >= 500 else 1)) for n, one in slowed(11, 0.02, 900, 2.0, 60)]
    told = first(onsets, rows)
    assert told is not None
    onsets.accept(told[1].step, told[1].factor)
    again = first(onsets, rows[told[0] + 1 :])
    assert again is not None
    assert abs(again[1].step - 900) <= 5
    assert again[1].factor == pytest.approx(2.0, rel=0.1)


def test_a_recovery_is_seen_only_when_it_is_one() -> None:
    onsets = Onsets()
    told = first(onsets, slowed(12, 0.02, 500, 1.5, 40))
    assert told is not None
    assert onsets.recovered(told[1], told[1].before) is None
    onsets.accept(told[1].step, told[1].factor)
    for number, one in zip(range(540, 580), seconds(13, 0.02), strict=False):
        onsets.add(number, one)
    since = onsets.recovered(told[1], told[1].before)
    assert since is not None
    assert abs(since - 540) <= 5
