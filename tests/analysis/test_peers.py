from __future__ import annotations

from random import Random
from statistics import median

import pytest

from ddoctor.analysis.peers import median_of_others


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8, 33])
def test_it_is_the_median_without_that_one(count: int) -> None:
    chance = Random(count)
    values = [chance.choice((1.0, 2.0, 2.5, 7.0, chance.random())) for _ in range(count)]
    for place, value in enumerate(values):
        others = values[:place] + values[place + 1 :]
        assert median_of_others(sorted(values), value) == median(others)
