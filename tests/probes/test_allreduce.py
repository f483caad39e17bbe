from __future__ import annotations

from itertools import pairwise

import pytest

from ddoctor.evidence.probes import AllReduce
from ddoctor.evidence.section import Evidence
from ddoctor.probing.world import FEWEST_ROUNDS, ROUNDS, bus_bandwidth

# All rounds of these fit into the time even on a loaded machine.
QUICK_UP_TO = 2**16


@pytest.fixture
def section(evidence: Evidence) -> AllReduce:
    (section,) = evidence.all(AllReduce)
    return section


@pytest.mark.ward
def test_sizes_double_from_small_ones(section: AllReduce) -> None:
    sizes = [point.bytes for point in section.points]
    assert sizes[0] == 1024
    assert len(sizes) >= 10
    assert all(larger == 2 * smaller for smaller, larger in pairwise(sizes))


@pytest.mark.ward
def test_each_size_is_timed_often_enough(section: AllReduce) -> None:
    for point in section.points:
        assert FEWEST_ROUNDS <= point.rounds <= ROUNDS
        assert point.rounds == ROUNDS or point.bytes > QUICK_UP_TO
        assert 0 < point.minimum <= point.p50 <= point.p99


@pytest.mark.ward
def test_bandwidth_follows_the_formula(section: AllReduce) -> None:
    for point in section.points:
        expected = bus_bandwidth(point.bytes, point.p50, len(section.ranks))
        assert point.bus_bandwidth == pytest.approx(expected)


@pytest.mark.ward
def test_values_are_right_on_this_machine(section: AllReduce) -> None:
    assert section.wrong == ()


@pytest.mark.ward
def test_says_where_the_ranks_run(section: AllReduce) -> None:
    assert [place.rank for place in section.ranks] == list(range(len(section.ranks)))
    assert {place.host for place in section.ranks} == {section.host}
