"""The rules of torch's caching allocator, by hand; a GPU's own statistics are in `make gpu`."""

from __future__ import annotations

import random

import pytest

from ddoctor.forecast.allocator import Allocator, replay

KIB, MIB = 2**10, 2**20


@pytest.mark.parametrize(
    ("size", "allocated", "reserved"),
    [
        (1, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (9 * MIB, 9 * MIB, 20 * MIB),
        # What is left of its segment is too little for another one.
        (10 * MIB, 10 * MIB, 10 * MIB),
        (11 * MIB, 12 * MIB, 12 * MIB),
        (100 * MIB + 1, 100 * MIB + 512, 102 * MIB),
    ],
)
def test_one_alone(size: int, allocated: int, reserved: int) -> None:
    taken = replay([(0, size)])
    assert (taken.peak, taken.reserved) == (allocated, reserved)


def test_small_ones_share_a_segment() -> None:
    assert replay((number, 512 * KIB) for number in range(4)).reserved == 2 * MIB
    assert replay((number, 512 * KIB) for number in range(5)).reserved == 4 * MIB


def test_what_was_given_back_is_taken_again() -> None:
    taken = replay([(0, 50 * MIB), (0, 0), (1, 48 * MIB), (1, 0), (2, 30 * MIB), (3, 18 * MIB)])
    assert taken.reserved == 50 * MIB


def test_the_smallest_that_is_large_enough() -> None:
    allocator = Allocator()
    large, middle = allocator.allocate(100 * MIB), allocator.allocate(40 * MIB)
    allocator.release(large)
    allocator.release(middle)
    assert allocator.allocate(30 * MIB) == middle
    assert allocator.reserved == 140 * MIB


def test_neighbours_that_are_free_are_one() -> None:
    allocator = Allocator()
    whole = allocator.allocate(90 * MIB)
    allocator.release(whole)
    first, second, third = (allocator.allocate(30 * MIB) for _ in range(3))
    for one in (first, third, second):
        allocator.release(one)
    assert allocator.allocate(90 * MIB) == whole
    assert allocator.reserved == 90 * MIB


def test_what_lives_long_leaves_pieces() -> None:
    # Twenty blocks of which every second one stays: half of it is free, and no two blocks are.
    whole = [(-1, 400 * MIB), (-1, 0)]
    rows = [(number, 20 * MIB) for number in range(20)]
    freed = [(number, 0) for number in range(0, 20, 2)]
    taken = replay([*whole, *rows, *freed, (99, 40 * MIB)])
    assert taken.peak == 400 * MIB
    assert taken.reserved == 440 * MIB


def test_another_size_in_place_of_the_last() -> None:
    assert replay([(0, 50 * MIB), (0, 10 * MIB), (1, 40 * MIB)]).reserved == 50 * MIB


@pytest.mark.parametrize(
    ("sizes", "reserved"),
    [
        ((1,), 2 * MIB),
        ((MIB, MIB, 1), 4 * MIB),
        ((MIB + 1,), 20 * MIB),
        # One is behind the other, in pages of 20 MiB.
        ((11 * MIB, 9 * MIB), 20 * MIB),
        ((11 * MIB, 10 * MIB), 40 * MIB),
        ((1, 100 * MIB), 102 * MIB),
    ],
)
def test_expandable_segments_grow(sizes: tuple[int, ...], reserved: int) -> None:
    assert replay(enumerate(sizes), expandable=True).reserved == reserved


def test_the_end_of_an_expandable_segment_serves_larger_ones() -> None:
    growing = [(0, 30 * MIB), (0, 0), (1, 50 * MIB), (1, 0), (2, 70 * MIB)]
    assert replay(growing).reserved == 150 * MIB
    assert replay(growing, expandable=True).reserved == 80 * MIB


def test_the_end_of_an_expandable_segment_is_taken_last() -> None:
    allocator = Allocator(expandable=True)
    first, _ = allocator.allocate(60 * MIB), allocator.allocate(40 * MIB)
    end = allocator.allocate(30 * MIB)
    allocator.release(first)
    allocator.release(end)
    # Of 60 MiB before, and 40 at the end, which is the smallest that is large enough.
    assert allocator.allocate(35 * MIB) == first
    assert allocator.allocate(35 * MIB) == end
    assert allocator.reserved == 140 * MIB


@pytest.mark.parametrize("expandable", [False, True])
def test_nothing_is_lost_and_nothing_overlaps(*, expandable: bool) -> None:
    random.seed(3)
    allocator, live = Allocator(expandable=expandable), dict[int, int]()
    for _ in range(3000):
        if live and random.random() < 0.5:
            address = random.choice(list(live))
            del live[address]
            allocator.release(address)
        else:
            size = int(2 ** random.uniform(5, 26))
            address = allocator.allocate(size)
            live[address] = size
        ends = 0
        for address, size in sorted(live.items()):
            assert address >= ends
            ends = address + size
        assert sum(live.values()) <= allocator.allocated <= allocator.reserved
    for address in live:
        allocator.release(address)
    assert allocator.allocated == 0
    # All of it is whole again.
    reserved = allocator.reserved
    allocator.allocate(20 * MIB)
    assert allocator.reserved == reserved
