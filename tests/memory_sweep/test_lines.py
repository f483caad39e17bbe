"""Where the limit is, by what two sizes held."""

from __future__ import annotations

import pytest

from ddoctor.memory_sweep.search import MemoryLines

GIB = 2**30


def test_two_sizes_tell_what_is_fixed() -> None:
    lines = MemoryLines()
    lines.record(2, [4 * GIB])
    lines.record(12, [9 * GIB])
    assert lines.decisive == pytest.approx((3 * GIB, GIB / 2))
    assert lines.reach(13 * GIB) == 20


def test_of_one_size_nothing_is_foretold_that_might_not_fit() -> None:
    lines = MemoryLines()
    assert (lines.reach(24 * GIB), lines.sure(24 * GIB)) == (None, 0)
    lines.record(4, [6 * GIB, 2 * GIB])
    assert (lines.reach(24 * GIB), lines.sure(24 * GIB)) == (16, 16)
    assert lines.decisive is None


def test_the_operator_that_will_hold_most_decides() -> None:
    """Of few samples the gradients make the peak, and of many the activations."""
    lines = MemoryLines()
    for size in (1, 2):
        lines.record(size, [(1 + size) * GIB, 10 * GIB])
    assert lines.reach(24 * GIB) == 23
    assert lines.reach(9 * GIB) == 8, "nothing is told of what does not grow"


def test_what_does_not_grow_has_no_end() -> None:
    lines = MemoryLines()
    for size in (1, 2):
        lines.record(size, [10 * GIB])
    assert lines.reach(24 * GIB) is None


def test_less_than_what_is_fixed() -> None:
    lines = MemoryLines()
    for size in (1, 2):
        lines.record(size, [(10 + size) * GIB])
    assert lines.reach(9 * GIB) == 0


def test_two_sizes_that_took_other_ways_are_compared_as_a_whole() -> None:
    lines = MemoryLines()
    lines.record(1, [2 * GIB, GIB])
    lines.record(2, [GIB, 3 * GIB, GIB])
    assert lines.reach(9 * GIB) == 8


def test_of_near_sizes_one_further_away_gives_the_line() -> None:
    lines = MemoryLines()
    for size, held in ((10, 10), (99, 99), (100, 102)):
        lines.record(size, [held * GIB])
    assert lines.decisive is not None
    assert lines.decisive[1] == pytest.approx(92 / 90 * GIB)
