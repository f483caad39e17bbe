from __future__ import annotations

from itertools import pairwise

import pytest

from ddoctor.evidence.cluster_probes import Collectives
from ddoctor.evidence.section import Evidence

# Of the algorithm's bandwidth with two ranks: nccl-tests' doc/PERFORMANCE.md.
FACTORS = {
    "all-reduce": 1.0,
    "all-gather": 0.5,
    "reduce-scatter": 0.5,
    "all-to-all": 0.5,
    "broadcast": 1.0,
}


@pytest.fixture
def section(evidence: Evidence) -> Collectives:
    (section,) = evidence.all(Collectives)
    return section


def test_every_collective_over_all_ranks_of_one_host(section: Collectives) -> None:
    assert [sweep.collective for sweep in section.sweeps] == list(FACTORS)
    for sweep in section.sweeps:
        assert (sweep.scope, sweep.host, sweep.ranks) == ("all", "", (0, 1))
        assert sweep.skipped == ""


def test_sizes_double_and_bandwidth_follows_the_formula(section: Collectives) -> None:
    for sweep in section.sweeps:
        assert sweep.points[0].bytes == 2**20
        assert all(more.bytes == 2 * less.bytes for less, more in pairwise(sweep.points))
        for point in sweep.points:
            assert 0 < point.minimum <= point.p50 <= point.p99
            due = point.bytes / point.p50 / 1e9 * FACTORS[sweep.collective]
            assert point.bus_bandwidth == pytest.approx(due)


def test_values_are_right_on_this_machine(section: Collectives) -> None:
    assert not [sweep.wrong for sweep in section.sweeps if sweep.wrong]
