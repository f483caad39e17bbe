from __future__ import annotations

from ddoctor.evidence.host import Clock
from ddoctor.models import Severity
from tests.conftest import Findings

CAUSE = "clock-skew"


def test_a_note_for_a_host_alone(findings: Findings) -> None:
    (finding,) = findings(CAUSE, Clock(host="a", synchronised=False))
    assert finding.severity is Severity.NOTE
    assert finding.where.hosts == ("a",)
    assert "no time service" in finding.because


def test_a_note_where_all_hosts_are_alike(findings: Findings) -> None:
    clocks = [Clock(host=host, synchronised=False) for host in "abc"]
    (finding,) = findings(CAUSE, *clocks)
    assert finding.severity is Severity.NOTE
    assert "3 of 3 hosts" in finding.because


def test_a_warning_for_the_one_that_has_fallen_out(findings: Findings) -> None:
    clocks = [Clock(host=host, synchronised=host != "b", service="chronyd") for host in "abc"]
    (finding,) = findings(CAUSE, *clocks)
    assert finding.severity is Severity.WARNING
    assert finding.where.hosts == ("b",)
    assert "chronyd runs" in finding.because
    assert "timedatectl" in finding.fixes[0].paste


def test_quiet_where_synchronised(findings: Findings) -> None:
    assert findings(CAUSE, Clock(host="a", synchronised=True, service="chronyd")) == ()


def test_quiet_where_all_are_synchronised(findings: Findings) -> None:
    assert findings(CAUSE, *(Clock(host=host, synchronised=True) for host in "abc")) == ()


def test_quiet_where_the_kernel_keeps_the_time_without_a_service(findings: Findings) -> None:
    assert findings(CAUSE, Clock(host="a", synchronised=True, service="")) == ()


def test_quiet_where_it_could_not_be_seen(findings: Findings) -> None:
    clocks = Clock(host="a", synchronised=None), Clock(host="b", synchronised=True)
    assert findings(CAUSE, *clocks) == ()
