from __future__ import annotations

import pytest

from ddoctor.evidence.gpus import KernelLog, PcieErrors, XidEvent
from ddoctor.models import Confidence, Severity
from tests.conftest import Findings
from tests.healthy.gpus import GPUS, otherwise
from tests.healthy.host import HOST

CAUSE = "gpu-hardware-fault"
BUS_2 = GPUS[2].bus_id


def log(*codes: int, bus_id: str = BUS_2, errors: tuple[PcieErrors, ...] = ()) -> KernelLog:
    xids = tuple(XidEvent(bus_id=bus_id, code=code, text="", age=7200.0) for code in codes)
    return KernelLog(host=HOST, source="/dev/kmsg", xids=xids, pcie_errors=errors)


def test_a_lost_gpu_is_certain(findings: Findings) -> None:
    lost = {"lost": True, "error": "GPU_IS_LOST"}
    (finding,) = findings(CAUSE, otherwise({2: lost}), log())
    assert finding.severity is Severity.ERROR
    assert finding.confidence is Confidence.CERTAIN
    assert finding.where.devices == ("cuda:2",)
    assert "reboot" in finding.fixes[0].paste
    assert finding.fixes[1].paste.endswith("CUDA_VISIBLE_DEVICES=0,1,3,4,5,6,7")


def test_a_lost_gpu_without_a_name_is_the_one_of_the_log(findings: Findings) -> None:
    lost = {"lost": True, "error": "GPU_IS_LOST", "bus_id": "", "name": ""}
    (finding,) = findings(CAUSE, otherwise({2: lost}), log(79, 154))
    assert "Xid 79 (the GPU has fallen off the bus) 1× in the kernel log, last 2.0 h ago" in (
        finding.because
    )


def test_xid_79_of_a_gpu_that_is_not_counted_any_more(findings: Findings) -> None:
    (finding,) = findings(CAUSE, otherwise({}), log(79, bus_id="0000:0f:00.0"))
    assert finding.severity is Severity.ERROR
    assert finding.where.devices == ("0000:0f:00.0",)


def test_an_uncorrected_error_that_waits_for_a_reset(findings: Findings) -> None:
    bad = {
        "ecc_uncorrected_volatile": 2,
        "remap_pending": True,
        "recovery_action": "drain_and_reset",
    }
    (finding,) = findings(CAUSE, otherwise({5: bad}), log())
    assert (finding.severity, finding.confidence) == (Severity.ERROR, Confidence.CERTAIN)
    assert "2 uncorrected memory errors" in finding.because
    assert "drain and reset" in finding.because
    assert finding.fixes[0].paste == "sudo nvidia-smi --gpu-reset -i 5"


def test_a_failed_remapping_is_a_board_to_replace(findings: Findings) -> None:
    (finding,) = findings(CAUSE, otherwise({5: {"remap_failed": True}}), log())
    assert finding.severity is Severity.ERROR
    assert "replace" in finding.fixes[0].summary


def test_an_error_without_consequences_is_a_warning(findings: Findings) -> None:
    (finding,) = findings(CAUSE, otherwise({5: {"ecc_uncorrected_volatile": 1}}), log())
    assert (finding.severity, finding.confidence) == (Severity.WARNING, Confidence.LIKELY)


def test_what_a_driver_may_have_done_is_only_possible(findings: Findings) -> None:
    old_driver = otherwise({2: {"recovery_action": None}})
    (finding,) = findings(CAUSE, old_driver, log(119, 119))
    assert (finding.severity, finding.confidence) == (Severity.WARNING, Confidence.POSSIBLE)
    assert "Xid 119" in finding.because
    assert "2×" in finding.because


@pytest.mark.parametrize(
    ("at", "severity", "count", "span"),
    [
        (BUS_2, "fatal", 1, 0.0),
        (BUS_2, "corrected", 500, 3000.0),
        ("0000:51:01.0", "corrected", 90, 60.0),  # the port right above it
    ],
)
def test_pcie_errors(findings: Findings, at: str, severity: str, count: int, span: float) -> None:
    errors = PcieErrors(bus_id=at, severity=severity, count=count, span=span)  # type: ignore[arg-type]
    (finding,) = findings(CAUSE, otherwise({}), log(errors=(errors,)))
    assert finding.where.devices == ("cuda:2",)
    assert f"{count} {severity} PCIe errors" in finding.because


@pytest.mark.parametrize(
    ("at", "severity", "count", "span"),
    [
        (BUS_2, "corrected", 3, 2.0),
        (BUS_2, "corrected", 500, 30 * 86400.0),
        (BUS_2, "nonfatal", 1, 0.0),
        ("0000:e0:00.0", "fatal", 9, 1.0),  # somebody else's device
    ],
)
def test_quiet_about_a_few_pcie_errors(
    findings: Findings, at: str, severity: str, count: int, span: float
) -> None:
    errors = PcieErrors(bus_id=at, severity=severity, count=count, span=span)  # type: ignore[arg-type]
    assert findings(CAUSE, otherwise({}), log(errors=(errors,))) == ()


@pytest.mark.parametrize("code", [13, 31, 43, 45, 63, 74, 137, 154, 9999])
def test_quiet_about_applications_and_informations(findings: Findings, code: int) -> None:
    assert findings(CAUSE, otherwise({}), log(code, code)) == ()


def test_quiet_about_old_counts_and_remapped_rows(findings: Findings) -> None:
    old = {"ecc_uncorrected_aggregate": 4, "ecc_corrected_volatile": 17, "rows_remapped": 2}
    assert findings(CAUSE, otherwise({5: old}), log()) == ()


@pytest.mark.parametrize("code", [48, 92, 94, 95, 119])
def test_only_a_note_about_what_a_reset_has_cured(findings: Findings, code: int) -> None:
    (finding,) = findings(CAUSE, otherwise({}), log(code))
    assert finding.severity is Severity.NOTE


def test_only_a_note_about_a_remapping_that_can_wait(findings: Findings) -> None:
    (finding,) = findings(CAUSE, otherwise({5: {"remap_pending": True}}), log())
    assert finding.severity is Severity.NOTE


def test_quiet_about_a_domain_of_many_nodes_that_recovers(findings: Findings) -> None:
    recovering = {"recovery_action": "recover_imex_domain"}
    assert findings(CAUSE, otherwise({-1: recovering}), log()) == ()


def test_does_without_the_kernel_log(findings: Findings) -> None:
    lost = {"lost": True, "error": "UNKNOWN"}
    (finding,) = findings(CAUSE, otherwise({2: lost}))
    assert "UNKNOWN" in finding.because
