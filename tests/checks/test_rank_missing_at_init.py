from __future__ import annotations

import msgspec
import pytest

from ddoctor.evidence.joining import HostCaller, HostJoining, Joining, JoiningRank
from ddoctor.evidence.live import LiveLook, LiveRank
from ddoctor.evidence.probes import ProbeRun, ProbeRuns
from tests.conftest import Findings
from tests.live_look import in_collective, look, moving, standing
from tests.training_run import library, user

CAUSE = "rank-missing-at-init"


def came(rank: int, *, joined: bool | None = True, last: str = "done", status: str = "") -> object:
    return JoiningRank(
        rank=rank,
        host=f"node-{rank}",
        pid=70 + rank,
        came=True,
        joined=joined,
        last=last,
        status=status,
        age=9.0,
    )


def joining(*ranks: object) -> Joining:
    rows = tuple(one for one in ranks if isinstance(one, JoiningRank))
    return Joining(endpoint="node-0:29400", limit=120.0, world_size=len(rows), ranks=rows)


def ended(outcome: str) -> ProbeRuns:
    run = ProbeRun(probe="matmul", outcome="crashed" if outcome == "crashed" else "hung")
    return ProbeRuns(runs=(run,))


def test_a_rank_that_never_came_is_named_with_those_that_did(findings: Findings) -> None:
    (found,) = findings(
        CAUSE, joining(came(0, joined=None), came(1, joined=None), JoiningRank(rank=2))
    )
    assert found.where.ranks == (2,)
    assert "rank 2 of 3 did not reach node-0:29400 within 120 s" in found.because
    assert "2 did, from node-0, node-1" in found.because


def test_its_process_is_told_where_it_was_found(findings: Findings) -> None:
    lost = JoiningRank(rank=1, host="node-1", pid=71, status="stopped", last="starting")
    (found,) = findings(CAUSE, joining(came(0, joined=None), lost))
    assert found.where.hosts == ("node-1",)
    assert "rank 1 (pid 71 on node-1) is stopped by a signal" in found.because
    assert "SIGCONT" in found.fixes[0].summary


def test_a_rank_that_is_stopped_before_the_group_forms(findings: Findings) -> None:
    stopped = came(1, joined=False, last="loading torch", status="stopped")
    others = [came(rank, joined=False, last="joining the gloo group") for rank in (0, 2)]
    (found,) = findings(CAUSE, joining(stopped, *others), ended("hung"))
    assert found.where.ranks == (1,)
    assert "at 'loading torch'; the other ranks were at 'joining the gloo group'" in found.because


def test_hosts_that_never_came(findings: Findings) -> None:
    section = HostJoining(
        host="node-0", endpoint="node-0:29400", limit=20, expected=3, came=("node-0", "node-2")
    )
    (found,) = findings(CAUSE, section)
    assert "2 of 3 hosts reached node-0:29400 within 20 s: node-0, node-2" in found.because
    assert found.because.endswith("the other hosts did not")
    assert found.where.hosts == ()


def test_a_host_that_never_came_is_told_by_its_number(findings: Findings) -> None:
    section = HostJoining(
        host="node-0",
        endpoint="node-0:29400",
        limit=20,
        expected=4,
        came=("node-0", "node-2"),
        callers=tuple(
            HostCaller(host=f"node-{number}", node_rank=number, expected=4, address="10.0.0.9")
            for number in (0, 2)
        ),
    )
    (found,) = findings(CAUSE, section)
    assert "node rank 1, 3 did not" in found.because


@pytest.mark.parametrize(
    "sections",
    [
        pytest.param([joining(came(0), came(1))], id="all joined"),
        pytest.param([joining(came(0, joined=None), came(1, joined=None))], id="nothing to join"),
        pytest.param(
            [joining(came(0), came(1, status="stopped"))], id="stopped after it had joined"
        ),
        pytest.param(
            [
                joining(came(0, joined=False), came(1, joined=False, status="stopped")),
                ended("crashed"),
            ],
            id="a rank died, and the others were ended",
        ),
        pytest.param(
            [joining(came(0, joined=False, status="sleeping"), came(1, joined=False))],
            id="all wait alike",
        ),
        pytest.param(
            [HostJoining(host="a", endpoint="a:1", limit=9, expected=2, came=("a", "b"))],
            id="all hosts came",
        ),
        pytest.param(
            [HostJoining(host="a", endpoint="a:1", limit=9, expected=2)], id="not reached at all"
        ),
    ],
)
def test_quiet(findings: Findings, sections: list[Joining]) -> None:
    assert findings(CAUSE, *sections) == ()


def waiting(number: int, *, age: float = 300.0) -> LiveRank:
    making = library("torch/distributed/distributed_c10d.py", 1900, "init_process_group")
    seen = standing(number, "joining", user(12, 'dist.init_process_group("nccl")'), making)
    return msgspec.structs.replace(seen, age_seconds=age)


def of_four(*ranks: LiveRank, missing: tuple[int, ...] = ()) -> LiveLook:
    return msgspec.structs.replace(look(*ranks, missing=missing), world=4)


def test_a_live_run_that_never_begins(findings: Findings) -> None:
    (finding,) = findings(CAUSE, of_four(waiting(0), waiting(1)))
    assert "ranks 0-1 of port 29500 wait in init_process_group at train.py:12" in finding.because
    assert "did not see 2 of them" in finding.because
    assert finding.where.ranks == ()


@pytest.mark.parametrize(
    "live",
    [
        of_four(waiting(0, age=20), waiting(1, age=20)),
        of_four(waiting(0), in_collective(1, "barrier", 30)),
        of_four(moving(0), moving(1)),
        # All were seen; one that was here is not here any more, which is told.
        look(waiting(0), waiting(1)),
        of_four(waiting(0), waiting(1), missing=(2,)),
    ],
)
def test_quiet_on_a_live_run(findings: Findings, live: LiveLook) -> None:
    assert findings(CAUSE, live) == ()
