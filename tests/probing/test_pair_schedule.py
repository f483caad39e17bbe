from __future__ import annotations

from collections import Counter
from itertools import combinations
from math import ceil, log2

import pytest

from ddoctor.probing.pair_schedule import first_rounds, slots


@pytest.mark.parametrize("hosts", [2, 3, 4, 5, 8, 15, 16])
def test_few_all_meet_one_another_once(hosts: int) -> None:
    rounds = first_rounds(range(hosts))
    pairs = [pair for one in rounds for pair in one]
    assert Counter(map(frozenset, pairs)) == Counter(map(frozenset, combinations(range(hosts), 2)))


@pytest.mark.parametrize("hosts", [2, 5, 16, 17, 100, 1023, 1024])
def test_nobody_is_in_two_pairs_of_a_round(hosts: int) -> None:
    for pairs in first_rounds(range(hosts)):
        busy = [rank for pair in pairs for rank in pair]
        assert len(busy) == len(set(busy)) >= hosts - 1


@pytest.mark.parametrize("hosts", [17, 100, 1024, 4096])
def test_rounds_grow_with_the_logarithm_and_bring_new_partners(hosts: int) -> None:
    rounds = first_rounds(range(hosts))
    assert len(rounds) == ceil(log2(hosts))
    pairs = [frozenset(pair) for one in rounds for pair in one]
    assert len(pairs) == len(set(pairs))


def test_ranks_need_not_be_numbered_without_gaps() -> None:
    assert {frozenset(pair) for pairs in first_rounds([0, 8, 16]) for pair in pairs} == {
        frozenset({0, 8}),
        frozenset({0, 16}),
        frozenset({8, 16}),
    }


def test_of_a_machine_with_few_cpus_one_pair_at_a_time() -> None:
    pairs = [(0, 1), (2, 3), (4, 5)]
    machines = {0: "a", 1: "a", 2: "a", 3: "a", 4: "b", 5: "c"}
    assert slots(pairs, machines, {"a": 2, "b": 2, "c": 2}) == [[(0, 1), (4, 5)], [(2, 3)]]
    assert slots(pairs, machines, {"a": 8, "b": 8, "c": 8}) == [pairs]
