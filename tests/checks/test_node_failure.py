from __future__ import annotations

from ddoctor.models import Confidence, Severity
from tests.conftest import Findings
from tests.logged import event, logged

CAUSE = "node-failure"


def test_the_node_is_named(findings: Findings) -> None:
    (finding,) = findings(
        CAUSE, logged(event("node-failure", host="n7"), event("watchdog", rank=1))
    )
    assert (finding.severity, finding.confidence) == (Severity.ERROR, Confidence.CERTAIN)
    assert "has lost n7" in finding.because
    assert "--exclude=n7" in finding.fixes[0].paste


def test_quiet_about_other_lines(findings: Findings) -> None:
    assert findings(CAUSE, logged()) == ()
    assert (
        findings(CAUSE, logged(event("progress", done="5", total="5"), event("time-limit"))) == ()
    )


def test_a_preempted_run_needs_no_other_node(findings: Findings) -> None:
    (finding,) = findings(CAUSE, logged(event("preempted"), event("watchdog", rank=1)))
    assert finding.title == "The scheduler preempted the run"
    assert "--requeue" in finding.fixes[0].paste
    assert "drain" not in finding.fixes[0].paste


def test_an_evicted_pod_tells_why(findings: Findings) -> None:
    (finding,) = findings(CAUSE, logged(event("evicted", resource="ephemeral-storage")))
    assert "low on ephemeral-storage" in finding.because
    assert "kubectl describe pod" in finding.fixes[0].paste


def test_a_node_of_kubernetes_is_cordoned(findings: Findings) -> None:
    (finding,) = findings(CAUSE, logged(event("node-failure", kubernetes="NodeNotReady")))
    assert finding.fixes[0].paste.startswith("kubectl cordon")
