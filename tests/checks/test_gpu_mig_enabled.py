from __future__ import annotations

import pytest

from tests.conftest import Findings
from tests.healthy.gpus import otherwise
from tests.logged import event, logged

CAUSE = "gpu-mig-enabled"


def test_names_the_gpu_and_the_command(findings: Findings) -> None:
    (finding,) = findings(CAUSE, otherwise({0: {"mig": True}}))
    assert finding.where.devices == ("cuda:0",)
    assert finding.fixes[0].paste == "sudo nvidia-smi -i 0 -mig 0"
    assert finding.fixes[1].paste.endswith("CUDA_VISIBLE_DEVICES=1,2,3,4,5,6,7")


def test_on_all_there_are_no_whole_gpus_to_run_on(findings: Findings) -> None:
    (finding,) = findings(CAUSE, otherwise({-1: {"mig": True}}))
    assert len(finding.fixes) == 1
    assert "8 of 8" in finding.because


@pytest.mark.parametrize("mig", [False, None])
def test_quiet_where_it_is_off_or_unknown_to_the_card(findings: Findings, mig: bool | None) -> None:
    assert findings(CAUSE, otherwise({-1: {"mig": mig}})) == ()


def test_a_device_that_a_process_does_not_see(findings: Findings) -> None:
    asked = logged(event("device-ordinal"))
    found = findings(CAUSE, otherwise({-1: {"mig": True}}), asked)
    assert any("asked for a GPU" in one.because for one in found)
    # One whole GPU, and a process may have meant that.
    (only,) = findings(CAUSE, otherwise({0: {"mig": True}}), asked)
    assert "asked for" not in only.because
    assert findings(CAUSE, otherwise({-1: {"mig": False}}), asked) == ()
    assert len(findings(CAUSE, otherwise({-1: {"mig": True}}), logged(event("xid")))) == 1
