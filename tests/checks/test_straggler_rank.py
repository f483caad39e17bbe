from __future__ import annotations

from collections.abc import Sequence

import pytest

from ddoctor import engine
from ddoctor.evidence.host import Cpus
from ddoctor.evidence.pairs import End, Flow, LocalWork, Pairs
from ddoctor.evidence.probes import RankPlace
from ddoctor.evidence.section import Evidence
from ddoctor.models import Confidence
from tests.conftest import Findings

CAUSE = "straggler-rank"
SOUND = (0.22, 0.2, 0.21, 0.2, 0.2)


def place(rank: int, ranks_per_host: int = 1) -> RankPlace:
    return RankPlace(rank=rank, host=f"node-{rank // ranks_per_host}", device="cpu")


def pairs(*seconds: Sequence[float], cpu: float = 0.99, ranks_per_host: int = 1) -> Pairs:
    """Ranks that needed so long."""
    work = tuple(
        LocalWork(
            place=place(rank, ranks_per_host),
            seconds=tuple(row),
            cpu=(cpu,) * len(row),
            queued=(1 - cpu,) * len(row),
        )
        for rank, row in enumerate(seconds)
    )
    ends = tuple(End(place=row.place) for row in work)
    return Pairs(backend="gloo", ends=ends, flows=(), work=work)


def times(factor: float) -> tuple[float, ...]:
    return tuple(factor * second for second in SOUND)


def test_a_rank_that_is_slow_every_time(findings: Findings) -> None:
    (finding,) = findings(CAUSE, pairs(SOUND, SOUND, times(2.0), SOUND, cpu=0.5))
    assert finding.where.hosts == ("node-2",)
    assert finding.where.ranks == (2,)
    assert finding.confidence is Confidence.CERTAIN
    assert "on a CPU for 50%" in finding.because
    assert "ps -eo" in finding.fixes[0].paste


def test_the_quota_and_the_mask_of_its_host_are_told(findings: Findings) -> None:
    cpus = Cpus(
        host="node-1", logical=8, allowed=(0, 1), quota=0.5, quota_file="/sys/fs/cgroup/a/cpu.max"
    )
    (finding,) = findings(CAUSE, pairs(SOUND, times(2.0), SOUND, cpu=0.5), cpus)
    assert {row.name: row.value for row in finding.evidence if row.name.startswith("CPU")} == {
        "CPU quota": 0.5,
        "CPUs allowed": "0-1",
    }
    assert "cat /sys/fs/cgroup/a/cpu.max /sys/fs/cgroup/a/cpu.stat" in finding.fixes[0].paste


def test_a_slower_processor(findings: Findings) -> None:
    (finding,) = findings(CAUSE, pairs(SOUND, SOUND, SOUND, times(1.5)))
    assert "the CPU itself is slower" in finding.because
    assert "governor" in finding.fixes[0].summary


def test_the_ranks_of_a_host_are_one_finding(findings: Findings) -> None:
    slow = times(1.8)
    (finding,) = findings(CAUSE, pairs(SOUND, SOUND, slow, slow, SOUND, SOUND, ranks_per_host=2))
    assert finding.where.hosts == ("node-1",)
    assert finding.where.ranks == (2, 3)


def test_two_slow_hosts_of_four(findings: Findings) -> None:
    found = findings(CAUSE, pairs(SOUND, times(2.0), SOUND, times(3.0)))
    assert [finding.where.hosts for finding in found] == [("node-1",), ("node-3",)]


def test_of_two_ranks_it_is_likely_only(findings: Findings) -> None:
    (finding,) = findings(CAUSE, pairs(SOUND, times(2.0)))
    assert finding.where.ranks == (1,)
    assert finding.confidence is Confidence.LIKELY


def test_it_explains_the_slow_link_of_its_host() -> None:
    section = pairs(SOUND, SOUND, times(3.0), SOUND, cpu=0.3)
    flows = tuple(
        Flow(sender=a, receiver=b, bytes=1, rates=((0.1 if 2 in (a, b) else 1.0),) * 7)
        for a in range(4)
        for b in range(4)
        if a != b
    )
    section = Pairs(backend="gloo", ends=section.ends, flows=flows, work=section.work)
    (finding,) = engine.examine(Evidence([section]), "probe").findings
    assert finding.cause == CAUSE
    assert finding.consequences == ("slow-network-link",)


@pytest.mark.parametrize(
    "last",
    [
        SOUND,
        times(1.2),
        # A neighbour came, and went again.
        (0.6, 0.6, 0.6, 0.6, 0.2),
        (0.2, 0.6, 0.6, 0.6, 0.6),
        # Seen too seldom.
        (0.6, 0.6),
    ],
)
def test_quiet_where_it_is_not_slow_every_time(findings: Findings, last: tuple[float, ...]) -> None:
    assert findings(CAUSE, pairs(SOUND, SOUND, SOUND, last)) == ()


def test_quiet_where_all_are_as_noisy(findings: Findings) -> None:
    loaded = (0.2, 0.5, 0.45, 0.3, 0.5)
    assert findings(CAUSE, pairs(loaded, loaded, loaded, (0.3, 0.5, 0.45, 0.4, 0.5))) == ()


def test_quiet_where_the_whole_machine_is_slow(findings: Findings) -> None:
    assert findings(CAUSE, pairs(*[times(5.0)] * 4)) == ()


def test_quiet_with_one_rank(findings: Findings) -> None:
    assert findings(CAUSE, pairs(times(5.0))) == ()
