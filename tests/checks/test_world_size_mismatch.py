from __future__ import annotations

import pytest

from ddoctor.evidence.joining import HostCaller, HostJoining, Joining, JoiningRank
from tests.conftest import Findings

CAUSE = "world-size-mismatch"


def rank(number: int, world_size: int | None = 4, *, came: bool = True) -> JoiningRank:
    return JoiningRank(rank=number, host=f"node-{number}", world_size=world_size, came=came)


def joining(*ranks: JoiningRank, launched: int | None = None) -> Joining:
    return Joining(
        endpoint="node-0:29500",
        limit=120.0,
        world_size=4,
        ranks=ranks,
        launched=launched,
        launched_by="SLURM_NTASKS" if launched else "",
    )


def hosts(*elsewhere: int) -> HostJoining:
    return HostJoining(
        host="node-0",
        endpoint="node-0:1",
        limit=9,
        expected=2,
        came=("node-0",),
        expected_elsewhere=elsewhere,
        callers=(
            HostCaller(host="node-0", expected=2),
            *(HostCaller(host="node-1", expected=told) for told in elsewhere),
        ),
    )


HALF = (rank(0), rank(1), rank(2, None, came=False), rank(3, None, came=False))
ALL = (rank(0), rank(1), rank(2), rank(3))


def test_slurm_started_fewer(findings: Findings) -> None:
    (found,) = findings(CAUSE, joining(*HALF, launched=2))
    assert "a world size of 4, but SLURM_NTASKS=2 processes were started" in found.because


def test_ranks_have_different_world_sizes(findings: Findings) -> None:
    (found,) = findings(CAUSE, joining(rank(0), rank(1), rank(2, 3), rank(3)))
    assert "4 on 3 ranks and 3 on 1 rank" in found.because
    assert found.where.ranks == (2,)


def test_two_processes_are_one_rank(findings: Findings) -> None:
    again = JoiningRank(rank=1, host="node-7", world_size=4, came=True)
    (found,) = findings(CAUSE, joining(rank(0), rank(1), again, rank(2, None, came=False)))
    assert "rank 1 joined more than once, from node-1, node-7" in found.because


def test_hosts_were_given_different_numbers(findings: Findings) -> None:
    (found,) = findings(CAUSE, hosts(3))
    assert "--nnodes differs between hosts: 2 on node-0, 3 on node-1" in found.because


@pytest.mark.parametrize(
    "section",
    [
        pytest.param(joining(*ALL), id="all came"),
        pytest.param(joining(*ALL, launched=4), id="as many as Slurm started"),
        pytest.param(joining(*HALF), id="ranks are missing, and nothing tells why"),
        pytest.param(joining(*HALF, launched=4), id="they were started, and are missing"),
        pytest.param(joining(*ALL, launched=1), id="torchrun is the one task of each host"),
        pytest.param(hosts(), id="hosts agree"),
    ],
)
def test_quiet(findings: Findings, section: Joining) -> None:
    assert findings(CAUSE, section) == ()
