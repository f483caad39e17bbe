"""Fixes that can be tried, and what is told of them afterwards."""

from __future__ import annotations

import pytest

from ddoctor.control_arms import MOST, Candidate, candidates, compared, proven, trial_candidates
from ddoctor.evidence.cluster_probes import ArmTurn, ControlArm, ControlArms
from ddoctor.evidence.probes import AllReduce, SweepPoint
from ddoctor.evidence.training import Trial, Trials, TrialTurn
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

TAKE = Fix(summary="take eth1", paste="export A", environment=("GLOO_SOCKET_IFNAME=eth1",))
UNSET = Fix(summary="let it", paste="unset A", environment=("NCCL_P2P_DISABLE",))
THREE = Fix(summary="3 workers", paste="num_workers=3", settings=("loader.num_workers=3",))
PINNED = Fix(summary="pin", paste="pin_memory=True", settings=("loader.pin_memory=true",))
STATIC = Fix(summary="static", paste="static_graph=True", settings=("ddp.static_graph=true",))
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
    def turns(rates: tuple[float | None, ...]) -> tuple[ArmTurn, ...]:
        return tuple(ArmTurn(rate=one, failure="" if one else "it hung") for one in rates)

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
        ((1.0, 1.3), "tried here, no clear gain: all-reduce 1 GB/s without it, 1.15 with it"),
        ((5.0, 1.0), "tried here, no clear gain"),
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


def trial(without: tuple[float | None, ...], with_it: tuple[float | None, ...]) -> Trials:
    def turns(seconds: tuple[float | None, ...]) -> tuple[TrialTurn, ...]:
        return tuple(TrialTurn(seconds=one, failure="" if one else "it hung") for one in seconds)

    one = Trial(change=THREE.settings, without=turns(without), with_it=turns(with_it))
    return Trials(trials=(one,))


def test_the_settings_of_the_first_finding_are_tried_each_once() -> None:
    first = finding(LOOK, THREE, THREE, TAKE, PINNED, STATIC)
    assert trial_candidates(report(finding(STATIC, severity=Severity.NOTE), first)) == (
        THREE.settings,
        PINNED.settings,
    )
    assert trial_candidates(report(finding(LOOK), finding(THREE))) == ()
    assert trial_candidates(report(finding(THREE, severity=Severity.NOTE))) == ()
    assert trial_candidates(report()) == ()


def test_faster_steps_are_verified_and_come_first() -> None:
    tried = trial((0.0812, 0.0808), (0.0341, 0.0339))
    (told,) = proven((finding(LOOK, PINNED, THREE),), None, tried)
    assert [fix.summary for fix in told.fixes] == ["3 workers", "look", "pin"]
    assert told.fixes[0].verified == Verified(before=0.081, after=0.034, unit="s/step")


def test_what_runs_with_a_setting_only_is_told_so() -> None:
    (told,) = proven((finding(LOOK, THREE),), None, trial((None, None), (0.034, 0.034)))
    assert told.fixes[0].verified is None
    gain = told.fixes[0].expected_gain
    assert gain == "tried here: 0.034 s/step with it; without it, it hung"


@pytest.mark.parametrize(
    ("without", "with_it", "words"),
    [
        (
            (0.12, 0.126),
            (0.12, 0.122),
            "tried here, no clear gain: 0.123 s/step without it, 0.121 with",
        ),
        (
            (0.12, 0.2),
            (0.1, 0.16),
            "the runs differ too much to tell: 0.12 and 0.2 s/step without it, 0.1 and 0.16 with",
        ),
        ((0.12, 0.12), (0.117, 0.117), "tried here, no clear gain"),
        ((0.1, 0.1), (0.2, 0.2), "tried here, no clear gain: 0.1 s/step without it, 0.2 with it"),
        ((0.1, 0.1), (0.05, None), "tried here, and it did not work: it hung"),
        ((None, 0.1), (0.1, 0.1), "tried here, no clear gain: no figure without it, 0.1 with it"),
    ],
    ids=["the same", "only as a mean", "hardly", "slower", "half a success", "half a failure"],
)
def test_a_setting_that_did_not_help_says_so_and_comes_last(
    without: tuple[float | None, ...], with_it: tuple[float | None, ...], words: str
) -> None:
    (told,) = proven((finding(THREE, LOOK),), None, trial(without, with_it))
    assert [fix.summary for fix in told.fixes] == ["look", "3 workers"]
    assert words in told.fixes[1].caution
    assert told.fixes[1].verified is None
    assert told.fixes[1].expected_gain == ""


def test_both_kinds_of_arms_are_told() -> None:
    both = finding(LOOK, TAKE, THREE)
    (told,) = proven((both,), arm((1.0, 1.0), (5.0, 5.0)), trial((0.2, 0.2), (0.1, 0.1)))
    units = [fix.verified.unit for fix in told.fixes if fix.verified]
    assert units == ["GB/s", "s/step"]


@pytest.mark.parametrize(
    "tried",
    [trial((), ()), Trials(trials=())],
    ids=["there was no time for it", "nothing was tried"],
)
def test_what_was_not_tried_stays_as_it_is(tried: Trials) -> None:
    untried = finding(THREE, LOOK)
    assert proven((untried,), None, tried) == (untried,)
