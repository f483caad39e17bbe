from __future__ import annotations

import pytest

from ddoctor.evidence.gpus import PcieLink
from ddoctor.evidence.probes import HostToDevice, RankPlace, RankRate
from ddoctor.models import Confidence
from tests.conftest import Findings
from tests.healthy.gpus import otherwise
from tests.healthy.host import HOST

CAUSE = "pcie-link-degraded"
BUSY = {"utilisation": 98, "performance_state": 0}


def link(width: int = 16, generation: int = 5, maximum: int = 16) -> dict[str, object]:
    return {
        "pcie": PcieLink(
            width=width, generation=generation, maximum_width=maximum, maximum_generation=5
        )
    }


def copies(*to_device: float, to_host: float = 50.0) -> HostToDevice:
    places = [
        RankPlace(
            rank=n,
            host=HOST,
            device=f"cuda:{n}",
            device_name="NVIDIA H100 80GB HBM3",
            bus_id=f"0000:{n}0:00.0",
        )
        for n in range(len(to_device))
    ]
    return HostToDevice(
        to_device=tuple(RankRate(place=p, rate=r) for p, r in zip(places, to_device, strict=True)),
        to_host=tuple(RankRate(place=p, rate=to_host) for p in places),
    )


def test_four_lanes_under_load_are_certain(findings: Findings) -> None:
    (finding,) = findings(CAUSE, otherwise({-1: BUSY, 6: BUSY | link(width=4)}))
    assert finding.confidence is Confidence.CERTAIN
    assert "4 lanes" in finding.because
    assert "16 lanes" in finding.because
    assert finding.fixes[0].paste.startswith("sudo lspci -vv -s 0000:d1:00.0")


def test_fewer_lanes_than_idle_equals_are_likely(findings: Findings) -> None:
    (finding,) = findings(CAUSE, otherwise({6: link(width=8)}))
    assert finding.confidence is Confidence.LIKELY
    assert "under load" in finding.because


def test_an_old_generation_under_load(findings: Findings) -> None:
    (finding,) = findings(CAUSE, otherwise({-1: BUSY, 2: BUSY | link(generation=3)}))
    assert "generation 3" in finding.because


def test_copies_of_one_gpu_are_slow_both_ways_in_one_finding(findings: Findings) -> None:
    slow = copies(50, 50, 13, 50)
    slow_back = tuple(
        RankRate(place=rate.place, rate=14.0 if rate.place.rank == 2 else 50.0)
        for rate in slow.to_host
    )
    (finding,) = findings(CAUSE, HostToDevice(to_device=slow.to_device, to_host=slow_back))
    assert finding.where.devices == ("cuda:2",)
    assert "13" in finding.because
    assert "14.0" in finding.because


@pytest.mark.parametrize("generation", [1, 2, 4])
def test_quiet_about_power_saving(findings: Findings, generation: int) -> None:
    asleep = link(generation=generation) | {"utilisation": 0, "performance_state": 8}
    assert findings(CAUSE, otherwise({-1: asleep})) == ()
    assert findings(CAUSE, otherwise({3: asleep})) == ()


def test_quiet_about_a_glimpse_of_work_in_a_low_state(findings: Findings) -> None:
    waking = link(generation=1) | {"utilisation": 60, "performance_state": 8}
    assert findings(CAUSE, otherwise({3: waking})) == ()


def test_quiet_about_idle_cards_that_are_all_alike(findings: Findings) -> None:
    assert findings(CAUSE, otherwise({-1: link(width=8)})) == ()


def test_quiet_about_a_slot_that_cannot_do_more(findings: Findings) -> None:
    assert findings(CAUSE, otherwise({-1: BUSY, 6: BUSY | link(width=8, maximum=8)})) == ()


def test_quiet_where_nothing_is_known(findings: Findings) -> None:
    assert findings(CAUSE, otherwise({-1: BUSY | {"pcie": None}, 1: {"pcie": PcieLink()}})) == ()


@pytest.mark.parametrize("rates", [(50, 50, 50, 50), (54, 40, 54, 40), (24,), (50, 47, 39, 52)])
def test_quiet_about_copies_that_differ_by_socket(
    findings: Findings, rates: tuple[float, ...]
) -> None:
    assert findings(CAUSE, copies(*rates)) == ()
