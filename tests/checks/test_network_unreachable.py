from __future__ import annotations

import pytest

from ddoctor.evidence.joining import Attempt, HostJoining, Outcome, Reach
from tests.conftest import Findings

CAUSE = "network-unreachable"
HOSTS = ("node-0", "node-1", "node-2", "node-3")


def attempt(host: str, outcome: Outcome = "connected") -> Attempt:
    return Attempt(host=host, address="10.0.0.9", port=41000, outcome=outcome)


def reaches(*broken: tuple[str, str], hosts: tuple[str, ...] = HOSTS) -> list[Reach]:
    """Every host tries every other one; these ways are filtered."""
    return [
        Reach(
            host=source,
            attempts=tuple(
                attempt(one, "timeout" if (source, one) in broken else "connected")
                for one in hosts
                if one != source
            ),
        )
        for source in hosts
    ]


def test_a_host_that_no_other_reaches_is_the_cause(findings: Findings) -> None:
    broken = [(source, "node-2") for source in HOSTS if source != "node-2"]
    (found,) = findings(CAUSE, *reaches(*broken))
    assert found.where.hosts == ("node-2",)
    assert "none of 3 hosts can connect to node-2" in found.because
    assert "a firewall drops it" in found.because


def test_a_host_behind_a_filter_in_both_directions_is_one_finding(findings: Findings) -> None:
    broken = [(a, b) for a in HOSTS for b in HOSTS if a != b and "node-1" in (a, b)]
    (found,) = findings(CAUSE, *reaches(*broken))
    assert found.where.hosts == ("node-1",)


def test_of_two_hosts_either_may_be_it(findings: Findings) -> None:
    (found,) = findings(CAUSE, *reaches(("node-0", "node-1"), hosts=HOSTS[:2]))
    assert found.where.hosts == ("node-0", "node-1")
    assert "1 of 2 connections between hosts failed" in found.because


def test_no_host_reaches_another(findings: Findings) -> None:
    broken = [(a, b) for a in HOSTS for b in HOSTS if a != b]
    (found,) = findings(CAUSE, *reaches(*broken))
    assert found.where.hosts == HOSTS


def joined(way: Attempt | None) -> HostJoining:
    return HostJoining(host="node-1", endpoint="node-0:29400", limit=20, expected=2, way=way)


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        ("refused", "no process listens"),
        ("timeout", "not answered"),
        ("no route", "found no route"),
    ],
)
def test_the_endpoint_is_not_reached(findings: Findings, outcome: Outcome, words: str) -> None:
    (found,) = findings(CAUSE, joined(attempt("node-0", outcome)))
    assert found.where.hosts == ("node-1",)
    assert "this host could not connect to node-0:29400 for 20 s" in found.because
    assert words in found.because


@pytest.mark.parametrize(
    "sections",
    [
        pytest.param(reaches(), id="all reach all"),
        pytest.param(reaches(hosts=HOSTS[:2]), id="two"),
        pytest.param([Reach(host="node-0", attempts=())], id="one host"),
        pytest.param([joined(None)], id="the store is here"),
        pytest.param([joined(attempt("node-0"))], id="the endpoint answers"),
        pytest.param([joined(attempt("node-0", "unresolved"))], id="the name is the cause"),
    ],
)
def test_quiet(findings: Findings, sections: list[Reach]) -> None:
    assert findings(CAUSE, *sections) == ()
