from __future__ import annotations

import pytest

from ddoctor.evidence.host import Cpus, Kernel
from ddoctor.evidence.probes import ProbeRuns, RankPlace
from ddoctor.evidence.steps import Phase, RankSteps, Steps
from ddoctor.evidence.training import RankHost, RankUse
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


def rank(
    number: int,
    throttled: int | None,
    periods: int | None = 100,
    *,
    waited: float | None = 0.4,
    threads: int = 1,
) -> RankHost:
    return RankHost(
        rank=number,
        host="a",
        local_ranks=2,
        threads=threads,
        affinity=tuple(range(96)),
        host_cpus=96,
        quota=None if periods is None else 1.5,
        throttled_periods=throttled,
        periods=periods,
        waited=waited,
    )


def use(*ranks: RankHost) -> RankUse:
    return RankUse(hosts=ranks, flags=())


def loading(seconds: float) -> Steps:
    """Steps of 0.1 s, with this share of each in the loader."""
    phases = (
        Phase(name="loader", seconds=(seconds,) * 60),
        Phase(name="forward", seconds=(0.1 - seconds,) * 60),
    )
    return Steps(
        warm_up=5,
        ranks=tuple(
            RankSteps(place=RankPlace(rank=number, host="a", device="cpu"), phases=phases)
            for number in (0, 1)
        ),
    )


def test_it_bites_while_it_trains(findings: Findings) -> None:
    (finding,) = findings(CAUSE, use(rank(0, 80), rank(1, 80)), cpus(1.5))
    assert finding.severity is Severity.WARNING
    assert finding.confidence is Confidence.CERTAIN
    assert finding.because == (
        "the cgroup on a grants 1.5 of 96 CPUs, and the processes used that up in 80% of the "
        "periods during the judged steps: the main threads waited for a CPU 40% of the time"
    )
    assert (finding.where.hosts, finding.where.ranks) == (("a",), ())
    assert finding.cost is not None
    assert finding.cost.value == 0.4
    assert "echo max" in finding.fixes[0].paste


def test_the_cgroup_of_one_rank_only(findings: Findings) -> None:
    (finding,) = findings(CAUSE, use(rank(0, None, None), rank(1, 60)))
    assert finding.where.ranks == (1,)
    assert "the cgroup of rank 1 on a" in finding.because


def test_fewer_threads_can_be_tried(findings: Findings) -> None:
    (finding,) = findings(CAUSE, use(rank(0, 80, threads=4), rank(1, 80, threads=4)))
    assert finding.fixes[-1].settings == ("torch.threads=1",)


def test_workers_that_stand_still(findings: Findings) -> None:
    ranks = use(rank(0, 80, waited=0.02), rank(1, 80, waited=0.02))
    (finding,) = findings(CAUSE, ranks, loading(0.03))
    assert finding.severity is Severity.WARNING
    assert "waited for the DataLoader 30%" in finding.because


def test_a_note_where_the_training_hardly_feels_it(findings: Findings) -> None:
    ranks = use(rank(0, 30, waited=0.03), rank(1, 30, waited=0.03))
    (finding,) = findings(CAUSE, ranks, loading(0.001))
    assert finding.severity is Severity.NOTE
    assert "only 3% of the time" in finding.because


@pytest.mark.parametrize(
    "ranks",
    [
        pytest.param((rank(0, 10), rank(1, 10)), id="seldom used up"),
        pytest.param((rank(0, 4, 5), rank(1, 4, 5)), id="too short to tell"),
        pytest.param((rank(0, None, None), rank(1, None, None)), id="no quota"),
    ],
)
def test_quiet_while_it_trains(findings: Findings, ranks: tuple[RankHost, ...]) -> None:
    assert findings(CAUSE, use(*ranks)) == ()


def test_quiet_where_a_tight_quota_does_not_bite(findings: Findings) -> None:
    assert findings(CAUSE, use(rank(0, 2), rank(1, 2)), cpus(1.5), ranks(2)) == ()
