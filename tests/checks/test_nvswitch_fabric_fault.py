from __future__ import annotations

import msgspec
import pytest

from ddoctor.models import Confidence, Severity
from tests.conftest import Findings
from tests.healthy.gpus import otherwise

CAUSE = "nvswitch-fabric-fault"


def test_not_started_on_all(findings: Findings) -> None:
    (finding,) = findings(CAUSE, otherwise({-1: {"fabric_state": "not_started"}}))
    assert (finding.severity, finding.confidence) == (Severity.ERROR, Confidence.CERTAIN)
    assert "8 of 8 GPUs" in finding.because
    assert "570.86.15" in finding.fixes[0].paste


def test_in_progress_may_still_end_well(findings: Findings) -> None:
    (finding,) = findings(CAUSE, otherwise({6: {"fabric_state": "in_progress"}}))
    assert finding.confidence is Confidence.LIKELY
    assert finding.where.devices == ("cuda:6",)


def test_a_registration_that_ended_in_an_error(findings: Findings) -> None:
    (finding,) = findings(CAUSE, otherwise({-1: {"fabric_status": "INSUFFICIENT_RESOURCES"}}))
    assert finding.severity is Severity.ERROR
    assert "insufficient resources" in finding.because


def test_degraded_bandwidth_is_a_warning(findings: Findings) -> None:
    (finding,) = findings(CAUSE, otherwise({1: {"fabric_trouble": ("degraded_bandwidth",)}}))
    assert finding.severity is Severity.WARNING
    assert finding.where.devices == ("cuda:1",)


@pytest.mark.parametrize("state", ["completed", "not_supported", None])
def test_quiet_in_every_sound_state(findings: Findings, state: str | None) -> None:
    assert findings(CAUSE, otherwise({-1: {"fabric_state": state}})) == ()


def test_quiet_about_a_single_gpu(findings: Findings) -> None:
    gpus = otherwise({-1: {"fabric_state": "in_progress"}})
    assert findings(CAUSE, msgspec.structs.replace(gpus, gpus=gpus.gpus[:1])) == ()


def test_quiet_about_a_lost_gpu(findings: Findings) -> None:
    lost = {"lost": True, "fabric_state": None}
    assert findings(CAUSE, otherwise({3: lost})) == ()
