from __future__ import annotations

import pytest

from ddoctor.evidence.gpus import Nvml
from ddoctor.evidence.host import Kernel
from ddoctor.models import Confidence, Severity
from tests.conftest import Findings

CAUSE = "nvml-init-failure"
BUS = ("0000:1b:00.0", "0000:43:00.0")
NODES = ("/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl")


def kernel(container: str = "") -> Kernel:
    return Kernel(host="a", release="6.8", container=container)


def failed(error: str, **fields: object) -> Nvml:
    return Nvml(host="a", state="failed", error=error, **fields)  # type: ignore[arg-type]


def test_a_mismatch_after_an_update_names_both_versions(findings: Findings) -> None:
    (finding,) = findings(
        CAUSE,
        failed(
            "LIB_RM_VERSION_MISMATCH",
            module_version="570.86.15",
            library_version="570.124.06",
            device_nodes=NODES,
        ),
        kernel(),
    )
    assert finding.severity is Severity.ERROR
    assert finding.confidence is Confidence.CERTAIN
    assert "570.124.06" in finding.because
    assert "570.86.15" in finding.because
    assert "reboot" in finding.fixes[0].paste


def test_a_module_that_is_not_loaded_for_gpus_that_are_there(findings: Findings) -> None:
    (finding,) = findings(CAUSE, failed("DRIVER_NOT_LOADED", pci_gpus=BUS), kernel())
    assert "2 NVIDIA GPUs" in finding.because
    assert "modprobe" in finding.fixes[0].paste


def test_a_container_that_lost_its_device_nodes_is_restarted(findings: Findings) -> None:
    lost = failed("UNKNOWN", pci_gpus=BUS, device_nodes=NODES)
    (finding,) = findings(CAUSE, lost, kernel("docker"))
    assert finding.confidence is Confidence.CERTAIN
    assert "create-dev-char-symlinks" in finding.fixes[0].paste


def test_a_container_that_was_given_no_gpu_may_be_meant_so(findings: Findings) -> None:
    (finding,) = findings(CAUSE, failed("DRIVER_NOT_LOADED", pci_gpus=BUS), kernel("docker"))
    assert finding.confidence is Confidence.POSSIBLE
    assert "--gpus all" in finding.fixes[0].paste


@pytest.mark.parametrize(
    ("container", "words"), [("docker", "DRIVER_CAPABILITIES"), ("", "ldconfig")]
)
def test_nodes_without_the_library(findings: Findings, container: str, words: str) -> None:
    nvml = Nvml(host="a", state="no-library", device_nodes=NODES)
    (finding,) = findings(CAUSE, nvml, kernel(container))
    assert words in finding.fixes[0].paste


@pytest.mark.parametrize(
    "nvml",
    [
        Nvml(host="a", state="ok", device_nodes=NODES, pci_gpus=BUS),
        Nvml(host="a", state="no-library"),
        # An image or a laptop with the library, on a machine without a GPU.
        failed("DRIVER_NOT_LOADED"),
        # An unused card on the bus: no driver, no library.
        Nvml(host="a", state="no-library", pci_gpus=BUS),
    ],
)
def test_quiet_where_nothing_fails(findings: Findings, nvml: Nvml) -> None:
    assert findings(CAUSE, nvml, kernel()) == ()
