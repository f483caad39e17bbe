from __future__ import annotations

import pytest

from ddoctor.models import Severity
from tests.conftest import Findings
from tests.healthy.gpus import otherwise

CAUSE = "gpu-power-capped"
CAP = {"power_limit": 400.0}
WORKING = {"utilisation": 99, "throttle_reasons": ("sw_power_cap",)}


def test_one_capped_gpu_slows_its_peers(findings: Findings) -> None:
    (finding,) = findings(CAUSE, otherwise({7: CAP}))
    assert finding.severity is Severity.WARNING
    assert finding.where.devices == ("cuda:7",)
    assert "400 W" in finding.because
    assert "700 W" in finding.because
    assert finding.fixes[0].paste == "sudo nvidia-smi -i 7 -pl 700"


def test_one_capped_host_among_two(findings: Findings) -> None:
    (finding,) = findings(CAUSE, otherwise({}, host="a"), otherwise({-1: CAP}, host="b"))
    assert finding.severity is Severity.WARNING
    assert finding.where.hosts == ("b",)
    assert "all GPUs" in finding.because


def test_a_cap_on_all_that_binds_now_is_a_warning(findings: Findings) -> None:
    (finding,) = findings(CAUSE, otherwise({-1: CAP | WORKING}))
    assert finding.severity is Severity.WARNING


def test_a_power_brake_is_found_at_the_default_limit(findings: Findings) -> None:
    brake = {"throttle_reasons": ("hw_slowdown", "hw_power_brake_slowdown"), "sm_clock": 990}
    (finding,) = findings(CAUSE, otherwise({2: brake}))
    assert "990 of 1980 MHz" in finding.because
    assert finding.where.devices == ("cuda:2",)


def test_only_a_note_about_an_even_cap_that_does_not_bind(findings: Findings) -> None:
    (finding,) = findings(CAUSE, otherwise({-1: CAP}))
    assert finding.severity is Severity.NOTE


def test_quiet_about_the_power_cap_at_the_default_limit(findings: Findings) -> None:
    assert findings(CAUSE, otherwise({-1: WORKING})) == ()


@pytest.mark.parametrize(
    "power",
    [
        {"power_limit": 699.0},
        {"power_limit": 750.0},
        {"power_limit": None},
        {"power_default": None},
        {"lost": True, "power_limit": None},
    ],
)
def test_quiet_where_nothing_is_below(findings: Findings, power: dict[str, object]) -> None:
    assert findings(CAUSE, otherwise({4: power})) == ()


def test_quiet_about_models_of_different_power(findings: Findings) -> None:
    small = {"name": "NVIDIA H100 PCIe", "power_limit": 350.0, "power_default": 350.0}
    assert findings(CAUSE, otherwise({0: small, 1: small})) == ()
