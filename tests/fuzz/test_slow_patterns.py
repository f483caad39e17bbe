"""No line of a log takes more than linear time, whatever it holds."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

import pytest

from ddoctor.reading.log_lines import patterns as of_logs
from tests.fuzz import adversarial

LENGTHS = (25, 250, 2_500, 10_000)
"""Of the last two, the growth is measured. The first ones tell exponential time before it hangs."""
FAST_SECONDS = 0.01
"""No expression needs more for a short line, unless it goes through the line many times."""
MOST_TIMES = 8.0
"""How much longer a line of four times the length may take; quadratic time is 16 times."""


def seconds(pattern: re.Pattern[str], line: str) -> float:
    began = time.thread_time()
    pattern.search(line)
    return time.thread_time() - began


def grows(pattern: re.Pattern[str], lines: Sequence[str]) -> bool:
    """Whether the time grows faster than the length of these lines."""
    *tiny, short, long = lines
    if any(min(seconds(pattern, one) for _ in range(2)) > FAST_SECONDS for one in tiny):
        return True
    usual = seconds(pattern, short)
    if usual > 20 * FAST_SECONDS:
        return True
    if seconds(pattern, long) < FAST_SECONDS:
        return False
    usual = min(usual, seconds(pattern, short))
    return min(seconds(pattern, long) for _ in range(2)) > MOST_TIMES * usual


def slow(pattern: re.Pattern[str]) -> list[str]:
    """The beginnings of lines whose time grows faster than their length."""
    lines = zip(*(adversarial.lines(pattern, length) for length in LENGTHS), strict=True)
    return [several[0] for several in lines if grows(pattern, several)]


@pytest.mark.parametrize(
    "pattern",
    [
        *(r"\d+/", r"x.*y"),
        *(
            pytest.param(one, marks=pytest.mark.ward)
            for one in (r"(?:ab?b?)*c", r"^(?:-{3,}[- ]*)$")
        ),
    ],
)
def test_what_takes_longer_is_found(pattern: str) -> None:
    assert slow(re.compile(pattern))


@pytest.mark.ward
def test_the_time_grows_with_the_length_alone() -> None:
    every = {
        **adversarial.patterns("ddoctor.reading"),
        **{one.row.name: one.text for one in of_logs()},
    }
    assert len(every) > 150
    assert {name: found for name, one in every.items() if (found := slow(one))} == {}
