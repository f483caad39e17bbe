from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from ddoctor.analysis.stragglers import stragglers
from ddoctor.analysis.work_imbalance import workload
from ddoctor.evidence.steps import Steps
from tests.training_steps import COUNT, steps, with_more

EACH = 2e-5
"""Seconds that one token takes."""


def of_tokens(
    *tokens: Sequence[int], delay: Sequence[float] = (), power: float = 1.0, noise: float = 0.02
) -> Steps:
    """Ranks whose forward pass takes as long as their tokens ask for, and so much longer."""
    ranks = [
        with_more("forward", [EACH * 1000 * (one / 1000) ** power + more for one in row])
        for row, more in zip(tokens, delay or (0.0,) * len(tokens), strict=True)
    ]
    return steps(*ranks, noise=noise, elements=tokens)


def lengths(seed: int, low: int = 500, high: int = 6000) -> list[int]:
    random = Random(seed)
    return [random.randint(low, high) for _ in range(COUNT)]


def test_different_lengths_explain_different_times() -> None:
    work = workload(of_tokens(*map(lengths, range(4))))
    assert work is not None
    assert work.unit == "numbers"
    assert work.seconds_each == pytest.approx(EACH, rel=0.1)
    assert work.ratio > 0.3
    assert work.lost > 0.02


def test_one_rank_with_more_in_every_step() -> None:
    section = of_tokens((2000,) * COUNT, (4000,) * COUNT)
    work = workload(section)
    assert work is not None
    assert work.heaviest(1) == 1
    assert work.heaviest(0) == 0
    assert stragglers(section) == ()


def test_samples_where_they_tell_more_than_numbers() -> None:
    counted = [[8] * COUNT, [12] * COUNT]
    ranks = [with_more("forward", 0.01 * row[0]) for row in counted]
    work = workload(steps(*ranks, samples=counted, elements=[[4096] * COUNT] * 2))
    assert work is not None
    assert work.unit == "samples"


def test_a_late_rank_is_still_told_among_different_lengths() -> None:
    (found,) = stragglers(of_tokens(*map(lengths, range(3)), delay=(0, 0.08, 0)))
    assert (found.place.rank, found.part) == (1, "computing")
    assert found.seconds == pytest.approx(0.08, rel=0.25)


def test_time_that_grows_with_the_square_of_the_length_is_work() -> None:
    section = of_tokens((1000,) * COUNT, (1500,) * COUNT, power=2.0)
    assert stragglers(section) == ()
    assert section.ranks[1].typical("forward") > 1.3 * section.ranks[0].typical("forward")


def test_a_little_more_work_does_not_explain_much_more_time() -> None:
    (found,) = stragglers(of_tokens((2000,) * COUNT, (2300,) * COUNT, delay=(0, 0.15)))
    assert found.place.rank == 1


@pytest.mark.parametrize(
    "section",
    [
        of_tokens((2000,) * COUNT, (2000,) * COUNT),
        of_tokens((2000,) * COUNT, (2100,) * COUNT),
        # What was given is not known, or the time does not follow it.
        steps(with_more("forward", 0.0), with_more("forward", 0.1)),
        steps(*[with_more("rest", 0.0)] * 2, elements=(lengths(1), lengths(2))),
        steps(with_more("rest", 0.0), elements=(lengths(1),)),
    ],
)
def test_no_difference_in_work(section: Steps) -> None:
    assert workload(section) is None
