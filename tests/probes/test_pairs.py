from __future__ import annotations

import pytest

from ddoctor import doctor
from ddoctor.evidence.pairs import Pairs
from ddoctor.evidence.section import Evidence


@pytest.fixture
def section(evidence: Evidence) -> Pairs:
    (section,) = evidence.all(Pairs)
    return section


def test_both_directions_are_measured_on_their_own(section: Pairs) -> None:
    assert [(flow.sender, flow.receiver) for flow in section.flows] == [(0, 1), (1, 0)]
    for flow in section.flows:
        assert 2**16 <= flow.bytes <= 2**26
        assert len(flow.rates) >= 2
        assert all(rate > 0 for rate in flow.rates)


def test_every_rank_works_alone_as_often(section: Pairs) -> None:
    assert [row.place.rank for row in section.work] == [0, 1]
    for row in section.work:
        assert len(row.seconds) == len(row.cpu) == 5
        assert all(second > 0 for second in row.seconds)
        assert all(0 < share <= 1 for share in row.cpu)
        assert all(0 <= share <= 1 for share in row.queued)


def test_one_machine_is_examined_without_it_unless_it_is_named() -> None:
    assert "pairs" not in doctor.choose(None)
    assert "matmul" in doctor.choose(None)
    assert doctor.choose(["pairs"]) == ("pairs",)
