from __future__ import annotations

import pytest

from ddoctor.evidence.host import Cpus, Kernel
from ddoctor.evidence.probes import ProbeRuns
from ddoctor.models import Confidence, Severity
from tests.conftest import Findings

CAUSE = "cpu-quota-throttled"
V1 = "/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us"
V2 = "/sys/fs/cgroup/job/cpu.max"


def cpus(
    quota: float | None,
    *,
    now: tuple[int, int] = (0, 10),
    past: tuple[int, int] = (0, 0),
    file: str = V2,
) -> Cpus:
    return Cpus(
        host="a",
        logical=96,
        allowed=tuple(range(96)),
        quota=quota,
        quota_file=file if quota is not None else "",
        throttled_periods=past[0],
        periods=past[1],
        recent_throttled_periods=now[0],
        recent_periods=now[1],
    )


def ranks(count: int) -> ProbeRuns:
    return ProbeRuns(host="a", runs=(), world_size=count)


@pytest.mark.parametrize(("quota", "world"), [(0.5, 2), (1.5, 2), (7.0, 8)])
def test_less_than_one_cpu_for_each_rank(findings: Findings, quota: float, world: int) -> None:
    (finding,) = findings(CAUSE, cpus(quota), ranks(world))
    assert finding.severity is Severity.WARNING
    assert finding.confidence is Confidence.CERTAIN
    assert f"grants {quota:g} of 96 CPUs" in finding.because


def test_less_than_one_cpu_at_all(findings: Findings) -> None:
    (finding,) = findings(CAUSE, cpus(0.5))
    assert finding.severity is Severity.WARNING
    assert "a single rank" in finding.because


def test_it_bites_just_now(findings: Findings) -> None:
    (finding,) = findings(CAUSE, cpus(8.0, now=(6, 10)), ranks(2))
    assert finding.severity is Severity.WARNING
    assert finding.confidence is Confidence.LIKELY
    assert "60%" in finding.because


def test_a_note_where_it_once_did(findings: Findings) -> None:
    (finding,) = findings(CAUSE, cpus(8.0, past=(9_000, 20_000)), ranks(2))
    assert finding.severity is Severity.NOTE
    assert "45% of 20000 periods" in finding.because


@pytest.mark.parametrize(
    ("container", "file", "words"),
    [
        ("docker", V2, "docker update --cpus 96"),
        ("kubernetes", V2, 'limits: {cpu: "96"}'),
        ("enroot", V2, f"echo max > {V2}"),
        ("", V1, f"echo -1 > {V1}"),
        ("", "/sys/fs/cgroup/user.slice/cpu.max", "set-property --runtime user.slice CPUQuota="),
    ],
)
def test_the_fix_is_made_where_the_quota_is(
    findings: Findings, container: str, file: str, words: str
) -> None:
    kernel = Kernel(host="a", release="6.8", container=container)
    (finding,) = findings(CAUSE, cpus(0.5, file=file), kernel)
    assert words in finding.fixes[0].paste


@pytest.mark.parametrize(
    "healthy",
    [
        pytest.param(cpus(None), id="no quota"),
        pytest.param(cpus(96.0, past=(9_000, 20_000)), id="all of the CPUs"),
        pytest.param(cpus(2.0), id="one for each rank"),
        pytest.param(cpus(48.0, now=(1, 10)), id="seldom used up"),
        pytest.param(cpus(48.0, now=(2, 3)), id="hardly anything ran"),
        pytest.param(cpus(48.0, past=(100, 20_000)), id="seldom in the past"),
        pytest.param(cpus(48.0, past=(300, 400)), id="a past too short to tell"),
    ],
)
def test_quiet(findings: Findings, healthy: Cpus) -> None:
    assert findings(CAUSE, healthy, ranks(2)) == ()
