"""Fixes that can be tried, and what is told of them afterwards."""

from __future__ import annotations

import pytest

from ddoctor.evidence.arms import ControlArm, ControlArms, Turn
from ddoctor.evidence.probes import AllReduce, SweepPoint
from ddoctor.models import (
    Confidence,
    Finding,
    Fix,
    Report,
    Severity,
    Verdict,
    Verified,
    Where,
    World,
)
from ddoctor.proof import MOST, Candidate, candidates, compared, proven

TAKE = Fix(summary="take eth1", paste="export A", environment=("GLOO_SOCKET_IFNAME=eth1",))
UNSET = Fix(summary="let it", paste="unset A", environment=("NCCL_P2P_DISABLE",))
LOOK = Fix(summary="look", paste="ip link")


def finding(*fixes: Fix, severity: Severity = Severity.WARNING, host: str = "") -> Finding:
    where = Where(hosts=(host,) if host else ())
    return Finding(
        severity=severity, confidence=Confidence.LIKELY, because="…", fixes=fixes, where=where
    )


def report(*findings: Finding, backend: str = "gloo") -> Report:
    return Report(
        ddoctor="1",
        command="probe",
        created="",
        verdict=Verdict.FINDINGS,
        world=World(backend=backend),
        findings=findings,
        skipped=(),
        crashed=(),
    )


def sweep(**rates: float) -> AllReduce:
    return AllReduce(
        backend="gloo",
        ranks=(),
        points=tuple(
            SweepPoint(
                bytes=int(size[1:]), rounds=20, p50=1.0, p99=1.0, minimum=1.0, bus_bandwidth=rate
            )
            for size, rate in rates.items()
        ),
    )


def arm(without: tuple[float | None, ...], with_it: tuple[float | None, ...]) -> ControlArms:
    def turns(rates: tuple[float | None, ...]) -> tuple[Turn, ...]:
        return tuple(Turn(rate=one, failure="" if one else "it hung") for one in rates)

    one = ControlArm(
        environment=TAKE.environment, bytes=8, without=turns(without), with_it=turns(with_it)
    )
    return ControlArms(arms=(one,))


def test_what_a_finding_asks_for_is_tried_once_and_where_it_was_found() -> None:
    found = candidates(report(finding(LOOK, TAKE), finding(TAKE), finding(TAKE, host="b")), {})
    assert found == (
        Candidate(environment=("GLOO_SOCKET_IFNAME=eth1",), hosts=()),
        Candidate(environment=("GLOO_SOCKET_IFNAME=eth1",), hosts=("b",)),
    )
    assert found[0].changes == {"GLOO_SOCKET_IFNAME": "eth1"}


@pytest.mark.parametrize(
    "tried",
    [
        finding(TAKE, severity=Severity.NOTE),
        finding(LOOK),
        finding(TAKE),
        finding(Fix(summary="threads", paste="", environment=("OMP_NUM_THREADS=4",))),
        finding(UNSET),
        finding(Fix(summary="as it is", paste="", environment=("NCCL_ALGO=Ring",))),
    ],
    ids=[
        "a note",
        "no variable",
        "of another backend",
        "all-reduce shows it not",
        "unset already",
        "set already",
    ],
)
def test_what_is_not_tried(tried: Finding) -> None:
    assert candidates(report(tried, backend="nccl"), {"NCCL_ALGO": "Ring"}) == ()


def test_a_variable_that_is_set_can_be_unset() -> None:
    (found,) = candidates(report(finding(UNSET), backend="nccl"), {"NCCL_P2P_DISABLE": "1"})
    assert found.changes == {"NCCL_P2P_DISABLE": None}


def test_no_blind_grid() -> None:
    many = [Fix(summary="", paste="", environment=(f"NCCL_MIN_NCHANNELS={n}",)) for n in range(10)]
    assert len(candidates(report(finding(*many), backend="nccl"), {})) == MOST


def test_turns_are_compared_at_the_largest_size_that_all_have() -> None:
    candidate = Candidate(environment=TAKE.environment, hosts=())
    slow, fast = sweep(b4=0.01, b8=0.012), sweep(b4=0.5, b8=1.0, b16=1.1)
    found = compared(candidate, [slow, slow], [fast, "it hung"])
    assert found.bytes == 8
    assert [turn.rate for turn in found.without] == [0.012, 0.012]
    assert [(turn.rate, turn.failure) for turn in found.with_it] == [(1.0, ""), (None, "it hung")]
    assert not found.gained
    assert compared(candidate, ["it hung"] * 2, ["it hung"] * 2).bytes == 0


def test_a_gain_is_verified_and_comes_first() -> None:
    (told,) = proven((finding(LOOK, TAKE),), arm((0.011, 0.013), (1.0, 1.2)))
    assert [fix.summary for fix in told.fixes] == ["take eth1", "look"]
    assert told.fixes[0].verified == Verified(before=0.012, after=1.1, unit="GB/s")


def test_what_did_not_work_at_all_before_is_a_gain() -> None:
    (told,) = proven((finding(TAKE),), arm((None, None), (1.0, 1.2)))
    assert told.fixes[0].verified == Verified(before=0.0, after=1.1, unit="GB/s")


@pytest.mark.parametrize(
    ("with_it", "words"),
    [
        ((1.0, 1.3), "tried here, no gain: all-reduce 1 GB/s without it, 1.15 with it"),
        ((5.0, 1.0), "tried here, no gain"),
        ((5.0, None), "tried here, and it did not work: it hung"),
    ],
)
def test_what_did_not_help_says_so_and_comes_last(
    with_it: tuple[float | None, ...], words: str
) -> None:
    (told,) = proven((finding(TAKE, LOOK),), arm((1.0, 1.0), with_it))
    assert [fix.summary for fix in told.fixes] == ["look", "take eth1"]
    assert words in told.fixes[1].caution
    assert told.fixes[1].verified is None


def test_what_was_tried_elsewhere_tells_nothing_here() -> None:
    untried = finding(TAKE, LOOK, host="b")
    assert proven((untried,), arm((1.0, 1.0), (5.0, 5.0))) == (untried,)
