from __future__ import annotations

import msgspec
import pytest

from ddoctor.evidence.probes import Burn
from ddoctor.models import Confidence, Severity
from tests.conftest import Findings
from tests.healthy.burn import SECTIONS as BURNS
from tests.healthy.gpus import otherwise

CAUSE = "gpu-thermal-throttling"
BUSY = {"utilisation": 99, "sm_clock": 1755, "throttle_reasons": ("sw_power_cap",)}
HOT = {
    "temperature": 90,
    "sm_clock": 1170,
    "throttle_reasons": ("hw_slowdown", "hw_thermal_slowdown"),
}


def test_a_hot_gpu_among_busy_ones(findings: Findings) -> None:
    (finding,) = findings(CAUSE, otherwise({-1: BUSY, 3: HOT}))
    assert (finding.severity, finding.confidence) == (Severity.WARNING, Confidence.CERTAIN)
    assert finding.where.devices == ("cuda:3",)
    assert "1170 of 1980 MHz at 90 °C" in finding.because
    assert "1755 MHz" in finding.because
    assert finding.cost is not None
    assert finding.cost.value == pytest.approx(1 - 1170 / 1755, abs=0.01)


def test_heat_without_load_has_no_cost_yet(findings: Findings) -> None:
    (finding,) = findings(CAUSE, otherwise({3: HOT}))
    assert finding.cost is None


def test_each_hot_gpu_is_named(findings: Findings) -> None:
    found = findings(CAUSE, otherwise({-1: BUSY, 3: HOT, 4: HOT}))
    assert [finding.where.devices for finding in found] == [("cuda:3",), ("cuda:4",)]


@pytest.mark.parametrize(
    "reasons",
    [
        (),
        None,
        ("gpu_idle",),
        ("sw_power_cap",),
        ("applications_clocks_setting",),
        ("sync_boost",),
        # Also reported while a clock changes, says NVML's reference.
        ("hw_slowdown",),
        ("hw_slowdown", "hw_power_brake_slowdown"),
    ],
)
def test_quiet_about_other_reasons(findings: Findings, reasons: tuple[str, ...] | None) -> None:
    busy = BUSY | {"throttle_reasons": reasons}
    assert findings(CAUSE, otherwise({-1: busy, 3: {"temperature": 88}})) == ()


def test_quiet_about_the_driver_s_word_on_a_sleeping_gpu(findings: Findings) -> None:
    asleep = {"throttle_reasons": ("gpu_idle", "sw_thermal_slowdown"), "utilisation": 0}
    assert findings(CAUSE, otherwise({3: asleep})) == ()


def burnt(limited_by: tuple[str, ...], last: float = 1.0) -> Burn:
    """The healthy burn, with one limited GPU whose rate falls by this share."""
    (sound,) = BURNS
    rank = sound.ranks[3]
    rates = (*rank.rates[:30], *(rate * last for rate in rank.rates[30:]))
    hot = msgspec.structs.replace(rank, limited_by=limited_by, rates=rates)
    return msgspec.structs.replace(sound, ranks=(*sound.ranks[:3], hot, *sound.ranks[4:]))


def test_a_gpu_that_gets_too_hot_in_a_burn(findings: Findings) -> None:
    (finding,) = findings(CAUSE, burnt(("sw_power_cap", "sw_thermal_slowdown"), last=0.6))
    assert finding.where.ranks == (3,)
    assert finding.where.devices == ("cuda:3",)
    assert "(sw_thermal_slowdown) in 60 s of full load, at up to 68 °C" in finding.because
    assert finding.cost is not None
    assert finding.cost.value == pytest.approx(0.4, abs=0.02)


@pytest.mark.parametrize("limited_by", [(), ("sw_power_cap",), ("sw_power_cap", "gpu_idle")])
def test_a_power_cap_in_a_burn_is_no_heat(findings: Findings, limited_by: tuple[str, ...]) -> None:
    assert findings(CAUSE, burnt(limited_by)) == ()
