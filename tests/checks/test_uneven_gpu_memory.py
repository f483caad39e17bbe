from __future__ import annotations

import pytest

from ddoctor.evidence.gpus import GpuProcess
from ddoctor.evidence.training import TrainingRun
from ddoctor.models import Confidence
from tests.conftest import Findings
from tests.gpu_memory_error import CROWDED, PIECES, SENT_BY_RANKS, error, out_of_memory
from tests.healthy.gpus import otherwise
from tests.training_run import ending, run

CAUSE = "uneven-gpu-memory"
GIB = 2**30


def held(holder: str, gib: float = 30, known: bool = True) -> dict[str, object]:
    process = GpuProcess(
        pid=4711,
        memory=int(gib * GIB) if known else None,
        name="python",
        user="bob",
        holder=holder,  # type: ignore[arg-type]
    )
    return {"processes": (process,), "memory_used": int(gib * GIB)}


def test_a_process_of_another_user(findings: Findings) -> None:
    (finding,) = findings(CAUSE, otherwise({4: held("foreign")}))
    assert finding.confidence is Confidence.CERTAIN
    assert finding.where.devices == ("cuda:4",)
    assert "process 4711 (python) of bob holds 30.0 GiB" in finding.because
    assert not any("kill" in fix.paste for fix in finding.fixes)
    assert finding.fixes[1].paste.endswith("0,1,2,3,5,6,7")


@pytest.mark.parametrize("processes", [(), None])
def test_memory_of_a_process_that_is_not_shown(findings: Findings, processes: object) -> None:
    unseen = {"processes": processes, "memory_used": 30 * GIB}
    (finding,) = findings(CAUSE, otherwise({4: unseen}))
    assert finding.confidence is Confidence.LIKELY
    assert "not visible here" in finding.because


def test_a_number_that_means_nothing_here_is_only_likely(findings: Findings) -> None:
    (finding,) = findings(CAUSE, otherwise({4: held("hidden")}))
    assert finding.confidence is Confidence.LIKELY
    assert "another container" in finding.because


def test_quiet_about_gpus_that_share_the_hosts_memory(findings: Findings) -> None:
    shared = held("foreign") | {"memory_total": 0, "memory_used": 0}
    assert findings(CAUSE, otherwise({0: shared})) == ()


def test_quiet_about_the_users_own_run_or_notebook(findings: Findings) -> None:
    assert findings(CAUSE, otherwise({-1: held("own", 60)})) == ()
    assert findings(CAUSE, otherwise({0: held("own", 60)})) == ()
    assert findings(CAUSE, otherwise({0: held("own", 60, known=False)})) == ()


def test_quiet_where_another_user_is_on_all_alike(findings: Findings) -> None:
    assert findings(CAUSE, otherwise({-1: held("foreign")})) == ()


def test_quiet_about_a_desktop(findings: Findings) -> None:
    assert findings(CAUSE, otherwise({0: held("foreign", 0.9)})) == ()


def test_quiet_about_different_models(findings: Findings) -> None:
    other = held("foreign") | {"name": "NVIDIA A100-SXM4-80GB"}
    assert findings(CAUSE, otherwise({7: other})) == ()


def test_a_rank_and_another_process(findings: Findings) -> None:
    (finding,) = findings(CAUSE, run(out_of_memory(0, CROWDED), ending(1, "hung")))
    assert finding.confidence is Confidence.CERTAIN
    assert finding.because.endswith("; process 77 held 23.0 GiB of it")
    assert finding.fixes[0].paste.endswith("-p 77")


def test_a_rank_and_unlisted_processes(findings: Findings) -> None:
    section = run(out_of_memory(0, error(own=None, allocated="50.00 GiB")))
    (finding,) = findings(CAUSE, section)
    assert finding.confidence is Confidence.LIKELY
    assert "processes that the driver does not list held" in finding.because


@pytest.mark.parametrize(
    "section",
    [
        run(out_of_memory(0)),
        run(out_of_memory(0, PIECES)),
        run(out_of_memory(0, SENT_BY_RANKS), *(ending(one, "hung") for one in (1, 2, 3))),
        run(out_of_memory(0, error(others={77: "0.40 GiB"}, own="78.10 GiB"))),
    ],
    ids=["full", "pieces", "ranks of the same run", "too little to matter"],
)
def test_quiet_where_no_other_process_held_memory(findings: Findings, section: TrainingRun) -> None:
    assert findings(CAUSE, section) == ()
