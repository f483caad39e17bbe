from __future__ import annotations

import pytest

from ddoctor.evidence.cluster_probes import ClockOffset, ClockOffsets
from ddoctor.evidence.host import Clock
from ddoctor.models import Confidence, Severity
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


def offsets(*seconds: float, uncertainty: float = 0.001) -> ClockOffsets:
    """Offsets are relative to the clock of the first host."""
    return ClockOffsets(
        offsets=tuple(
            ClockOffset(
                host=f"node-{index}", offset=offset, uncertainty=uncertainty if index else 0
            )
            for index, offset in enumerate(seconds)
        )
    )


def test_a_clock_that_is_ahead(findings: Findings) -> None:
    (finding,) = findings(CAUSE, offsets(0.0, 0.001, 2.5, -0.002))
    assert finding.severity is Severity.WARNING
    assert finding.confidence is Confidence.CERTAIN
    assert finding.where.hosts == ("node-2",)
    assert "2.5 s ahead of" in finding.because


def test_the_first_host_itself_may_be_the_wrong_one(findings: Findings) -> None:
    (finding,) = findings(CAUSE, offsets(0.0, 3.0, 3.001, 2.999))
    assert finding.where.hosts == ("node-0",)
    assert "3 s behind" in finding.because


def test_of_two_neither_is_known_to_be_right(findings: Findings) -> None:
    (finding,) = findings(CAUSE, offsets(0.0, -1.0))
    assert finding.where.hosts == ("node-0", "node-1")
    assert finding.confidence is Confidence.LIKELY
    assert "which of the two" in finding.because


def test_several_wrong_clocks_are_one_finding(findings: Findings) -> None:
    (finding,) = findings(CAUSE, offsets(0.0, 0.5, 0.0, -0.9, 0.0))
    assert finding.where.hosts == ("node-1", "node-3")
    assert [row.value for row in finding.evidence] == [-0.9, 0.5]


@pytest.mark.parametrize(
    "measured",
    [
        offsets(0.0),
        offsets(0.0, 0.0),
        offsets(0.0, 0.05),
        offsets(0.0, 0.01, -0.02, 0.03),
        # Half a second off, told over a network so slow that it may be nothing.
        offsets(0.0, 0.5, 0.0, 0.0, uncertainty=0.4),
    ],
)
def test_quiet_where_clocks_agree_as_far_as_can_be_told(
    findings: Findings, measured: ClockOffsets
) -> None:
    assert findings(CAUSE, measured) == ()
