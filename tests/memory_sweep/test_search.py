"""The search against trying every size, on made-up memory."""

from __future__ import annotations

import random
from collections.abc import Callable
from math import ceil, sqrt

import pytest

from ddoctor.memory_sweep.search import MOST_TRIALS, TRIALS, MemoryLines, Search

GIB = 2**30
LIMIT = 24 * GIB
MOST = 4096

Memory = Callable[[int], float]


def searched(*ranks: Memory, first: int = 1, limits: tuple[int, ...] = (LIMIT,)) -> Search:
    search = Search(first=first, most=MOST)
    known = [MemoryLines() for _ in ranks]
    while (size := search.next()) is not None:
        used = [round(memory(size)) for memory in ranks]
        search.record(size, fits=all(one <= limit for one, limit in zip(used, limits, strict=True)))
        if search.largest == size:
            for lines, one in zip(known, used, strict=True):
                lines.record(size, [one])
        foretell(search, known, limits)
    return search


def foretell(search: Search, known: list[MemoryLines], limits: tuple[int, ...]) -> None:
    both = list(zip(known, limits, strict=True))
    reached = [found for lines, limit in both if (found := lines.reach(limit)) is not None]
    search.foretell(min(reached, default=None), sure=min(one.sure(limit) for one, limit in both))


def every(*ranks: Memory, limits: tuple[int, ...] = (LIMIT,)) -> int:
    """The largest size that fits, by trying one after the other."""
    size = 0
    while size < MOST and all(
        round(memory(size + 1)) <= limit for memory, limit in zip(ranks, limits, strict=True)
    ):
        size += 1
    return size


def lines(number: int) -> list[tuple[float, float, int]]:
    """Fixed and per sample, in bytes, with a size to begin at; 2 to 300 samples fit."""
    made = random.Random(7)
    found = []
    for _ in range(number):
        fits = int(10 ** made.uniform(0.3, 2.5))
        fixed = made.uniform(0.05, 0.85) * LIMIT
        first = made.choice([1, 1, max(1, fits // 4), max(1, fits // 2), fits, 2 * fits])
        found.append((fixed, (LIMIT - fixed) / (fits + made.random()), first))
    return found


def test_of_lines_the_exact_largest_in_few_trials() -> None:
    for fixed, each, first in lines(300):
        memory = lambda size, fixed=fixed, each=each: fixed + each * size  # noqa: E731
        search = searched(memory, first=first)
        assert search.largest == every(memory)
        assert search.trials <= TRIALS


def rounded(fixed: float, each: float) -> Memory:
    """By the allocator, to segments of 20 MiB."""
    return lambda size: ceil((fixed + each * size) / (20 * 2**20)) * 20 * 2**20


def bent(fixed: float, each: float) -> Memory:
    """Attention that keeps its square: a per cent of the device at the limit."""
    most = (LIMIT - fixed) / each
    return lambda size: fixed + each * size - 0.01 * LIMIT * (1 - (size / most) ** 2)


def flattening(fixed: float, each: float) -> Memory:
    """Three per cent of the device that grow ever more slowly."""
    most = (LIMIT - fixed) / each
    return lambda size: fixed + each * size - 0.03 * LIMIT * (1 - sqrt(size / most))


def wobbling(fixed: float, each: float) -> Memory:
    """Each further sample takes up to 15 % more or less than the usual one."""
    made = random.Random(each)
    sums = [fixed]
    for _ in range(MOST):
        sums.append(sums[-1] + each * made.uniform(0.85, 1.15))
    return lambda size: sums[size]


def hinged(fixed: float, each: float) -> Memory:
    """Of few samples the gradients make the peak, and of many the activations."""
    most = (LIMIT - fixed) / each
    return lambda size: max(fixed + each * size, LIMIT - 0.7 * each * most + 0.3 * each * size / 2)


@pytest.mark.parametrize("shape", [rounded, bent, flattening, wobbling])
def test_of_what_is_nearly_a_line_the_exact_largest_in_few_trials(
    shape: Callable[[float, float], Memory],
) -> None:
    exact = 0
    for fixed, each, first in lines(100):
        memory = shape(fixed, each)
        search, truth = searched(memory, first=first), every(memory)
        # Where it is not settled, the truth lies between two close sizes.
        assert search.largest <= truth < (search.too_large or MOST + 1)
        assert search.trials <= MOST_TRIALS
        exact += search.largest == truth and search.trials <= TRIALS
    assert exact >= 93


def test_where_few_samples_tell_little_it_comes_near_all_the_same() -> None:
    exact = 0
    for fixed, each, first in lines(100):
        memory = hinged(fixed, each)
        search, truth = searched(memory, first=first), every(memory)
        assert 0.9 * truth <= search.largest <= truth < (search.too_large or MOST + 1)
        assert search.trials <= MOST_TRIALS
        exact += search.largest == truth
    assert exact >= 93


def test_a_jump_is_no_line_and_the_answer_is_still_near() -> None:
    def memory(size: int) -> float:
        # From 64 samples on another kernel, with a workspace of its own.
        return (4 + 0.1 * size + (3 if size >= 64 else 0)) * GIB

    search = searched(memory)
    assert search.largest <= every(memory) == 170
    assert search.largest > 170 * 0.95


def test_the_smaller_of_unequal_ranks_decides() -> None:
    def memory(size: int) -> float:
        return (2 + 0.25 * size) * GIB

    limits = (24 * GIB, 20 * GIB)
    search = searched(memory, memory, limits=limits)
    assert search.largest == every(memory, memory, limits=limits) == 72
    assert search.too_large == 73


def test_the_rank_with_more_to_hold_decides() -> None:
    search = searched(
        lambda size: (1 + 0.1 * size) * GIB,
        lambda size: (9 + 0.1 * size) * GIB,
        limits=(LIMIT, LIMIT),
    )
    assert search.largest == 150


@pytest.mark.parametrize("first", [1, 8])
def test_less_than_the_fixed_part(first: int) -> None:
    search = searched(lambda size: (30 + size) * GIB, first=first)
    assert (search.largest, search.too_large) == (0, 1)
    assert search.trials == (1 if first == 1 else 2)


def test_one_sample_and_no_second() -> None:
    search = searched(lambda size: (4 + 15 * size) * GIB)
    assert (search.largest, search.too_large, search.trials) == (1, 2, 2)


def test_beyond_the_largest_that_is_allowed() -> None:
    search = searched(lambda size: GIB + size * 2**10)
    assert (search.largest, search.too_large) == (MOST, None)
    assert search.trials <= TRIALS


def test_it_ends_where_less_becomes_allowed_on_the_way() -> None:
    search = Search(first=4, most=MOST)
    assert search.next() == 4
    search.record(4, fits=True)
    search.most = 4
    assert search.next() is None
    assert (search.largest, search.too_large) == (4, None)


def test_a_size_that_fitted_may_turn_out_not_to() -> None:
    search = searched(lambda size: (2 + size) * GIB)
    assert search.largest == 22
    search.record(22, fits=False)
    assert search.too_large == 22
    assert search.largest < 22
    assert search.next() is not None
