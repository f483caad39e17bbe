from __future__ import annotations

import pytest

from ddoctor.evidence.host import Cpus
from ddoctor.evidence.probes import ProbeRuns
from ddoctor.evidence.software import Environment, Variable
from ddoctor.evidence.training import RankHost, RankUse
from ddoctor.models import Confidence, Severity
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
    assert f"on {count} usable CPUs" in finding.because
    assert finding.fixes[0].paste == f"export OMP_NUM_THREADS={fitting}"


def test_the_quota_counts(findings: Findings) -> None:
    (finding,) = findings(CAUSE, cpus(96, quota=16.0), threads("12"), ranks(8))
    assert "96 threads on 16 usable CPUs" in finding.because
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


def use(
    *threads: int,
    cpus: int = 96,
    quota: float | None = None,
    waited: float | None = 0.5,
    asked: int | None = None,
) -> RankUse:
    hosts = tuple(
        RankHost(
            rank=rank,
            host="a",
            local_ranks=len(threads),
            threads=count,
            omp_threads=asked,
            affinity=tuple(range(cpus)),
            host_cpus=cpus,
            quota=quota,
            workers=3,
            waited=waited,
        )
        for rank, count in enumerate(threads)
    )
    return RankUse(hosts=hosts, flags=())


def test_seen_while_it_trained(findings: Findings) -> None:
    (finding,) = findings(CAUSE, use(2, 2, cpus=2))
    assert finding.severity is Severity.WARNING
    assert finding.confidence is Confidence.LIKELY
    assert finding.because == (
        "2 ranks on a with up to 2 threads each, and 6 DataLoader workers, have 2 usable CPUs: "
        "the main threads waited in the run queue for 50% of the time"
    )
    assert finding.where.hosts == ("a",)
    assert finding.cost is not None
    assert finding.cost.value == 0.5
    assert finding.fixes[0].paste == "export OMP_NUM_THREADS=1"
    assert finding.fixes[0].settings == ("torch.threads=1",)


def test_the_script_sets_them_itself(findings: Findings) -> None:
    (finding,) = findings(CAUSE, use(8, 8, cpus=4, asked=1))
    assert finding.fixes[0].paste == "torch.set_num_threads(2)"


def test_one_rank_with_too_many(findings: Findings) -> None:
    (finding,) = findings(CAUSE, use(1, 8, cpus=4, asked=8))
    assert finding.where.ranks == (1,)
    assert finding.fixes[0].paste == "export OMP_NUM_THREADS=2"


def test_a_quota_while_it_trained(findings: Findings) -> None:
    (finding,) = findings(CAUSE, use(*[12] * 8, quota=16.0))
    assert "have 16 usable CPUs" in finding.because
    assert finding.fixes[0].settings == ("torch.threads=2",)


def test_the_time_in_the_run_queue_was_not_seen(findings: Findings) -> None:
    (finding,) = findings(CAUSE, use(*[96] * 8, waited=None))
    assert finding.confidence is Confidence.POSSIBLE
    assert "schedstat" in finding.because


def test_what_was_recorded_is_told_once(findings: Findings) -> None:
    assert len(findings(CAUSE, use(2, 2, cpus=2), threads("2"), cpus(2), ranks(2))) == 1


@pytest.mark.parametrize(
    "sound",
    [
        pytest.param(use(*[12] * 8), id="shared out"),
        pytest.param(use(*[16] * 8), id="a little more than there are"),
        pytest.param(use(1, 1, 1, 1, cpus=2), id="one each is as few as can be"),
        pytest.param(use(1, 1, cpus=2), id="workers are not threads"),
        pytest.param(use(*[96] * 8, waited=0.02), id="they hardly wait: the GPUs work"),
        pytest.param(use(96), id="alone"),
    ],
)
def test_quiet_while_it_trained(findings: Findings, sound: RankUse) -> None:
    assert findings(CAUSE, sound, threads("96"), cpus(96), ranks(8)) == ()
