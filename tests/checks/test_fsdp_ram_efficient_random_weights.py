from __future__ import annotations

import pytest

from ddoctor.evidence.launch import Launch, Setting
from ddoctor.evidence.software import Package, Software
from ddoctor.models import Severity
from tests.conftest import Findings
from tests.launched import launch

CAUSE = "fsdp-ram-efficient-random-weights"
LOADS, SENDS = "fsdp.cpu_ram_efficient_loading", "fsdp.sync_module_states"


def test_nothing_sends_the_weights(findings: Findings) -> None:
    (finding,) = findings(CAUSE, launch("accelerate", "train.py", {LOADS: "true", SENDS: "false"}))
    assert finding.severity is Severity.WARNING
    assert "only rank 0 loads the weights" in finding.because


@pytest.mark.parametrize(
    ("version", "file", "refused"),
    [("1.15.0", "fsdp.yaml", True), ("0.21.0", "fsdp.yaml", False), ("1.15.0", "", False)],
)
def test_a_launcher_that_refuses(
    findings: Findings, version: str, file: str, refused: bool
) -> None:
    settings = {LOADS: "true", SENDS: "false"}
    starts = Launch(
        command=("accelerate", "launch", "train.py"),
        launcher="accelerate",
        settings=tuple(
            Setting(name=name, value=value, file=file, origin="the command line")
            for name, value in settings.items()
        ),
    )
    packages = (Package(name="accelerate", version=version),)
    (finding,) = findings(CAUSE, starts, Software(packages=packages))
    assert (finding.severity is Severity.ERROR) is refused
    assert ("raises ValueError" in finding.because) is refused


@pytest.mark.parametrize(
    "settings",
    [
        {LOADS: "true", SENDS: "true"},
        {LOADS: "false", SENDS: "false"},
        {LOADS: "true", SENDS: "false", "fsdp.version": "2"},
        {LOADS: "true", SENDS: "null"},
        {LOADS: "true"},
        {},
    ],
)
def test_quiet(findings: Findings, settings: dict[str, str]) -> None:
    assert findings(CAUSE, launch("accelerate", "train.py", settings)) == ()
