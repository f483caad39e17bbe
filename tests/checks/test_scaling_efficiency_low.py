from __future__ import annotations

from collections.abc import Sequence

import pytest

from ddoctor import engine
from ddoctor.evidence.section import Evidence
from ddoctor.evidence.steps import Steps
from ddoctor.evidence.training import RankHost, RankUse
from ddoctor.models import Severity
from tests.conftest import Findings
from tests.training_steps import USUAL, Work, every, steps, with_more

CAUSE = "scaling-efficiency-low"


def by_turns(ranks: int, seconds: float, device: str = "cuda", cpu: Sequence[float] = ()) -> Steps:
    """In each step another rank is late, for no reason that its parts would tell."""
    delays = every(ranks, seconds)
    return steps(
        *(with_more("forward", delays[rank:] + delays[:rank]) for rank in range(ranks)),
        device=device,
        cpu=cpu,
    )


def queued(share: float) -> RankUse:
    host = RankHost(
        rank=0, host="node-0", local_ranks=4, threads=1, affinity=(0,), host_cpus=1, waited=share
    )
    return RankUse(hosts=(host,), flags=())


def test_ranks_that_are_late_by_turns(findings: Findings) -> None:
    (finding,) = findings(CAUSE, by_turns(4, 0.06))
    assert finding.severity is Severity.WARNING
    assert "spends 70% of the median step" in finding.because
    assert [row.name for row in finding.evidence[1:]] == [
        "scaling efficiency at 8 ranks",
        "scaling efficiency at 16 ranks",
    ]


def test_a_little_is_a_note(findings: Findings) -> None:
    (finding,) = findings(CAUSE, by_turns(4, 0.02))
    assert finding.severity is Severity.NOTE


@pytest.mark.parametrize(
    ("device", "size", "severity"),
    [
        ("cpu", 0.01, Severity.NOTE),
        ("cpu", 0.1, Severity.WARNING),
        ("cuda", 0.01, Severity.WARNING),
    ],
)
def test_waking_the_threads_of_one_host_is_a_note(
    findings: Findings, device: str, size: float, severity: Severity
) -> None:
    work: Work = {"forward": 0.04 * size, "backward": 0.06 * size}
    section = steps(work, work, transfer=0.09 * size, device=device)
    (finding,) = findings(CAUSE, section, queued(0.01))
    assert finding.severity is severity


@pytest.mark.parametrize(
    ("use", "severity"),
    [
        ((), Severity.NOTE),
        ((queued(0.2),), Severity.NOTE),
        ((queued(0.01),), Severity.WARNING),
    ],
)
def test_on_cpus_it_takes_quiet_ones(
    findings: Findings, use: tuple[RankUse, ...], severity: Severity
) -> None:
    (finding,) = findings(CAUSE, by_turns(4, 0.06, device="cpu"), *use)
    assert finding.severity is severity


@pytest.mark.parametrize(
    ("cpu", "severity"),
    [((0.09, 0.092, 0.09, 0.091), Severity.WARNING), ((0.09, 0.11, 0.09, 0.09), Severity.NOTE)],
)
def test_on_cpus_it_takes_cores_that_are_alike(
    findings: Findings, cpu: tuple[float, ...], severity: Severity
) -> None:
    (finding,) = findings(CAUSE, by_turns(4, 0.06, device="cpu", cpu=cpu), queued(0.01))
    assert finding.severity is severity


@pytest.mark.parametrize(
    ("root", "ranks"),
    [
        ("straggler-rank", (USUAL, with_more("backward", 0.08))),
        ("rank0-extra-work", (with_more("rest", 0.08), USUAL)),
        ("gc-pause-straggler", (with_more("gc", 0.08), with_more("gc", 0.0))),
        ("checkpoint-stall", (with_more("checkpoint", every(2, 0.16)), USUAL)),
    ],
)
def test_it_follows_from_others(root: str, ranks: tuple[Work, ...]) -> None:
    section = steps(*ranks, transfer=0.012)
    assert [one.cause for one in engine.examine(Evidence([section]), "run").findings] == [root]


@pytest.mark.parametrize(
    "section",
    [
        steps(USUAL, USUAL, noise=0.05),
        by_turns(4, 0.01),
        # The loader is late on all ranks alike: that would be so on one rank too.
        steps(*[with_more("loader", 0.3)] * 2),
        steps(USUAL, transfer=0.05),
        steps(USUAL, USUAL, transfer=0.05, count=9),
        # In few steps only.
        steps(with_more("rest", every(10, 3.0)), USUAL),
    ],
)
def test_quiet(findings: Findings, section: Steps) -> None:
    assert findings(CAUSE, section) == ()
