from __future__ import annotations

import pytest

from ddoctor.evidence.environment import Environment, Variable
from ddoctor.evidence.host import Cpus
from ddoctor.evidence.probes import ProbeRuns
from ddoctor.models import Severity
from tests.conftest import Findings

CAUSE = "cpu-thread-oversubscription"


def cpus(count: int, quota: float | None = None) -> Cpus:
    return Cpus(host="a", logical=count, allowed=tuple(range(count)), quota=quota)


def threads(value: str | None) -> Environment:
    set_ = () if value is None else (Variable(name="OMP_NUM_THREADS", value=value),)
    return Environment(host="a", variables=set_)


def ranks(count: int) -> ProbeRuns:
    return ProbeRuns(host="a", runs=(), world_size=count)


@pytest.mark.parametrize(
    ("count", "value", "world", "fitting"),
    [(96, "96", 8, 12), (96, "24", 8, 12), (2, "2", 2, 1), (96, "48,2", 8, 12)],
)
def test_more_threads_than_cpus(
    findings: Findings, count: int, value: str, world: int, fitting: int
) -> None:
    (finding,) = findings(CAUSE, cpus(count), threads(value), ranks(world))
    assert finding.severity is Severity.WARNING
    assert f"for {count} usable CPUs" in finding.because
    assert finding.fixes[0].paste == f"export OMP_NUM_THREADS={fitting}"


def test_the_quota_counts(findings: Findings) -> None:
    (finding,) = findings(CAUSE, cpus(96, quota=16.0), threads("12"), ranks(8))
    assert "96 threads for 16 usable CPUs" in finding.because
    assert finding.fixes[0].paste == "export OMP_NUM_THREADS=2"


@pytest.mark.parametrize(
    ("count", "value", "world"),
    [
        pytest.param(96, "12", 8, id="shared out"),
        pytest.param(96, "16", 8, id="a little more than there are"),
        pytest.param(96, None, 8, id="torchrun sets it to 1"),
        pytest.param(96, "1", 8, id="one each"),
        pytest.param(1, "1", 2, id="fewer CPUs than ranks is another cause"),
        pytest.param(96, "many", 8, id="no number is another cause"),
        pytest.param(96, "", 8, id="empty"),
    ],
)
def test_quiet(findings: Findings, count: int, value: str | None, world: int) -> None:
    assert findings(CAUSE, cpus(count), threads(value), ranks(world)) == ()


def test_quiet_where_nothing_tells_the_ranks(findings: Findings) -> None:
    assert findings(CAUSE, cpus(2), threads("96")) == ()
