from __future__ import annotations

from ddoctor.evidence.gpus import KernelLog, NvLink, XidEvent
from ddoctor.models import Confidence, Severity
from tests.conftest import Findings
from tests.healthy.gpus import GPUS, otherwise
from tests.healthy.host import HOST

CAUSE = "nvlink-degraded"
QUIET_LOG = KernelLog(host=HOST, source="/dev/kmsg")


def links(active: int, of: int = 18, remote: str = "switch") -> dict[str, object]:
    return {
        "nvlinks": tuple(
            NvLink(index=n, active=n < active, remote=remote if n < active else "")
            for n in range(of)
        )
    }


def log(*codes: int, gpu: int = 1) -> KernelLog:
    xids = tuple(XidEvent(bus_id=GPUS[gpu].bus_id, code=c, text="", age=600.0) for c in codes)
    return KernelLog(host=HOST, source="/dev/kmsg", xids=xids)


def test_two_links_down(findings: Findings) -> None:
    (finding,) = findings(CAUSE, otherwise({1: links(16)}), QUIET_LOG)
    assert (finding.severity, finding.confidence) == (Severity.WARNING, Confidence.CERTAIN)
    assert finding.where.devices == ("cuda:1",)
    assert "16 active NVLinks, equal GPUs have 18 (down: 16, 17)" in finding.because


def test_no_link_at_all_where_the_equals_have_the_switches(findings: Findings) -> None:
    (finding,) = findings(CAUSE, otherwise({1: links(0)}), QUIET_LOG)
    assert "0 active NVLinks" in finding.because


def test_link_errors_of_the_log(findings: Findings) -> None:
    gpus = otherwise({1: {"recovery_action": None}})
    (finding,) = findings(CAUSE, gpus, log(74, 74))
    assert finding.confidence is Confidence.LIKELY
    assert "2 NVLink errors" in finding.because


def test_only_a_note_where_the_driver_asks_for_nothing_more(findings: Findings) -> None:
    (finding,) = findings(CAUSE, otherwise({}), log(74))
    assert finding.severity is Severity.NOTE


def test_quiet_about_the_echo_of_a_gpu_that_fell_off_the_bus(findings: Findings) -> None:
    assert findings(CAUSE, otherwise({1: {"recovery_action": None}}), log(79, 74)) == ()


def test_quiet_about_cards_without_a_bridge(findings: Findings) -> None:
    pair = links(12, of=12, remote="0000:43:00.0")
    alone = links(0, of=12)
    gpus = otherwise({-1: alone, 0: pair, 1: pair})
    assert findings(CAUSE, gpus, QUIET_LOG) == ()


def test_quiet_where_all_are_alike(findings: Findings) -> None:
    for fields in (links(18), links(12, of=18), links(0), {"nvlinks": None}):
        assert findings(CAUSE, otherwise({-1: fields}), QUIET_LOG) == ()


def test_quiet_about_another_model_with_fewer_links(findings: Findings) -> None:
    other = links(12, of=12) | {"name": "NVIDIA A100-SXM4-80GB"}
    assert findings(CAUSE, otherwise({7: other}), QUIET_LOG) == ()
