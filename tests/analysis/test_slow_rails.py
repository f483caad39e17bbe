"""Hosts with a NIC for each GPU: what is slow is a NIC, a host, a rail or a link."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import permutations

import pytest

from ddoctor.analysis import slow_rails
from ddoctor.analysis.slow_links import REPEATS, Analysis
from ddoctor.evidence.cluster_probes import End, Flow
from ddoctor.evidence.probes import RankPlace

RAILS = 4
USUAL = 48.0

# GB/s of sender and receiver, each a host and a rail; the rail is the same.
Rate = Callable[[int, int, int], float]


def examined(rate: Rate, hosts: int = 4, lanes: int = RAILS) -> Analysis:
    """What all ways show, with 2 % of noise; rank i of host h is ``h * lanes + i``."""
    chance = random.Random(1)
    ends = tuple(
        End(place=RankPlace(rank=rank, host=f"node-{rank // lanes}", device="cuda"), rail=rail)
        for rank in range(hosts * lanes)
        for rail in [rank % lanes]
    )
    flows = [
        Flow(
            sender=a * lanes + rail,
            receiver=b * lanes + rail,
            bytes=2**26,
            rates=tuple(
                rate(a, b, rail) * (1 - abs(chance.gauss(0, 0.02))) for _ in range(REPEATS)
            ),
        )
        for a, b in permutations(range(hosts), 2)
        for rail in range(lanes)
    ]
    return slow_rails.analyse(flows, ends)


def told(analysis: Analysis) -> set[tuple[str, tuple[int, ...]]]:
    return {(one.what, one.ranks) for one in analysis.slow}


@pytest.mark.parametrize("hosts", [2, 3, 4, 16])
@pytest.mark.parametrize("lanes", [1, 2, 8])
def test_sound_rails_are_not_accused(hosts: int, lanes: int) -> None:
    assert examined(lambda a, b, rail: USUAL, hosts, lanes).slow == ()


@pytest.mark.parametrize("hosts", [2, 4])
def test_rails_that_are_slower_by_design_are_not_accused(hosts: int) -> None:
    """Half of the GPUs reach their NIC over another socket, on every host."""
    assert examined(lambda a, b, rail: USUAL * (0.65 if rail > 1 else 1), hosts).slow == ()


def test_a_rail_that_is_slow_on_all_hosts() -> None:
    analysis = examined(lambda a, b, rail: USUAL * (0.4 if rail == 3 else 1))
    assert told(analysis) == {("rail", (3, 7, 11, 15))}
    assert analysis.usual == pytest.approx(USUAL, rel=0.05)


def test_one_nic_of_one_host() -> None:
    analysis = examined(lambda a, b, rail: USUAL * (0.5 if rail == 2 and 1 in (a, b) else 1))
    assert told(analysis) == {("host", (6,))}


def test_one_nic_that_only_sends_slowly() -> None:
    analysis = examined(lambda a, b, rail: USUAL * (0.5 if rail == 2 and a == 1 else 1))
    assert told(analysis) == {("sending", (6,))}


def test_what_is_slow_on_every_rail_is_the_host() -> None:
    analysis = examined(lambda a, b, rail: USUAL * (0.5 if 1 in (a, b) else 1))
    assert told(analysis) == {("host", (4, 5, 6, 7))}


def test_two_hosts_and_a_slow_rail_between_them_are_a_link() -> None:
    analysis = examined(lambda a, b, rail: USUAL * (0.4 if rail == 3 else 1), hosts=2)
    assert told(analysis) == {("link", (3, 7))}


def test_a_slow_rail_does_not_hide_a_slow_host() -> None:
    analysis = examined(
        lambda a, b, rail: USUAL * (0.4 if rail == 3 else 1) * (0.5 if 1 in (a, b) else 1)
    )
    assert told(analysis) == {("rail", (3, 7, 11, 15)), ("host", (4, 5, 6))}
