from __future__ import annotations

import pytest

from ddoctor.evidence.live import BuildLock, BuildLocks, LiveLook, LiveRank
from ddoctor.models import Confidence, Severity
from tests.conftest import Findings
from tests.live_look import in_collective, look, moving, standing
from tests.training_run import library, user

CAUSE = "stale-jit-extension-cache"
LOCK = "/root/.cache/torch_extensions/py311_cu128/fused_adam/lock"
LOADS = (
    user(12, "ops = load_inline('scale', source)"),
    library("torch/utils/cpp_extension.py", 1989, "load_inline"),
    library("torch/utils/cpp_extension.py", 2400, "_jit_compile"),
)


def waiting(rank: int) -> LiveRank:
    return standing(rank, "rest", *LOADS, library("torch/utils/file_baton.py", 49, "wait"))


def building(rank: int) -> LiveRank:
    return standing(rank, "rest", *LOADS, library("subprocess.py", 1209, "communicate"))


def locks(*, age: float = 300.0, holder: int | None = None) -> BuildLocks:
    lock = BuildLock(path=LOCK, age_seconds=age, holder=holder)
    return BuildLocks(host="node-0", locks=(lock,))


def test_a_lock_that_nobody_holds(findings: Findings) -> None:
    live = look(in_collective(0, "barrier", 20), waiting(1))
    (finding,) = findings(CAUSE, live, locks())
    assert finding.severity is Severity.ERROR
    assert finding.confidence is Confidence.LIKELY
    assert finding.where.ranks == (1,)
    assert "rank 1 (pid 101 on node-0) waits at train.py:12" in finding.because
    assert f"no process of this host holds {LOCK}, created 5 minutes ago" in finding.because
    assert "rank 0 waits in barrier at train.py:20" in finding.because
    assert finding.fixes[0].paste == f"rm {LOCK}"


def test_after_hours_no_other_host_is_at_it(findings: Findings) -> None:
    (finding,) = findings(CAUSE, look(waiting(0), waiting(1)), locks(age=5 * 3600))
    assert finding.confidence is Confidence.CERTAIN
    assert "ranks 0-1 wait" in finding.because
    assert "5 hours ago" in finding.because


def test_a_lock_in_a_folder_of_its_own(findings: Findings) -> None:
    (finding,) = findings(CAUSE, look(waiting(0), waiting(1)), BuildLocks(host="node-0"))
    assert (finding.severity, finding.confidence) == (Severity.WARNING, Confidence.POSSIBLE)
    assert "no rank of this run builds it" in finding.because


@pytest.mark.parametrize(
    ("live", "found"),
    [
        (look(moving(0), moving(1)), locks()),
        (look(building(0), waiting(1)), locks(holder=100)),
        # Another job builds it, here or elsewhere.
        (look(waiting(0), waiting(1)), locks(holder=4711)),
        (look(building(0), in_collective(1, "barrier", 20)), locks(holder=100)),
        (look(waiting(0), missing=(1,)), BuildLocks(host="node-0")),
    ],
)
def test_is_quiet(findings: Findings, live: LiveLook, found: BuildLocks) -> None:
    assert findings(CAUSE, live, found) == ()
