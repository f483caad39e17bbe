from __future__ import annotations

import msgspec
import pytest

from ddoctor import engine
from ddoctor.evidence.loading import Loading
from ddoctor.evidence.section import Evidence
from ddoctor.evidence.training import RankEnding
from ddoctor.models import Confidence, Severity
from tests.conftest import Findings
from tests.training_loaders import loader_with
from tests.training_run import echoing, ending, library, raised, run, user

CAUSE = "dataloader-fork-unsafe"

CUDA = """Caught RuntimeError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "data.py", line 9, in __getitem__
    return self.items[index].cuda()
RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, \
you must use the 'spawn' start method"""
SIGNAL = "DataLoader worker (pid 4711) is killed by signal: Segmentation fault. "
WAITING = (
    user(58, "for batch in loader:"),
    library("torch/utils/data/dataloader.py", 1275, "_try_get_data"),
    library("multiprocessing/queues.py", 113, "get"),
)


def loading(**more: object) -> Loading:
    plain = loader_with(
        host="a",
        num_workers=4,
        sampler="RandomSampler",
    )
    return Loading(loaders=(msgspec.structs.replace(plain, **more),))


def standing(**more: object) -> RankEnding:
    usual: dict[str, object] = {"steps": 0, "doing": "loader", "doing_seconds": 60.0}
    return ending(0, "hung", **{"stack": WAITING} | usual | more)


def test_cuda_refuses(findings: Findings) -> None:
    (finding,) = findings(CAUSE, run(raised(0, "RuntimeError", CUDA), ending(1, "hung")))
    assert finding.severity is Severity.ERROR
    assert finding.confidence is Confidence.CERTAIN
    assert finding.where.ranks == (0,)
    assert "a DataLoader worker of rank 0 used CUDA" in finding.because
    assert "CPU tensors" in finding.fixes[0].summary
    assert 'multiprocessing_context="forkserver"' in finding.fixes[1].paste


def test_it_explains_the_death_of_the_rank() -> None:
    section = run(raised(0, "RuntimeError", CUDA), echoing(1))
    first = engine.examine(Evidence([section]), "run").findings[0]
    assert first.cause == CAUSE
    assert "dead-rank" in first.consequences


def test_the_driver_refuses(findings: Findings) -> None:
    message = (
        "Caught RuntimeError in DataLoader worker process 1.\nCUDA error: initialization error"
    )
    assert findings(CAUSE, run(raised(0, "RuntimeError", message)))


def test_no_batch_ever_came(findings: Findings) -> None:
    (finding,) = findings(CAUSE, run(standing()), loading())
    assert finding.confidence is Confidence.LIKELY
    assert "waited 60 s for the first batch" in finding.because
    assert "train.py:58" in finding.because
    assert "cv2.setNumThreads(0)" in finding.fixes[0].paste


def test_a_forked_worker_crashed(findings: Findings) -> None:
    (finding,) = findings(CAUSE, run(raised(0, "RuntimeError", SIGNAL)), loading())
    assert finding.confidence is Confidence.POSSIBLE
    assert "Segmentation fault" in finding.because


@pytest.mark.parametrize(
    ("one", "more"),
    [
        (standing(), {"context": "spawn"}),
        # It had brought batches before: a lock of the parent would have held them as well.
        (standing(), {"collated": 12}),
        (standing(steps=12), {"taken": 12}),
        # In the dataset itself, without workers.
        (standing(stack=(user(12, "return read(path)", "__getitem__"),)), {"num_workers": 0}),
        (raised(0, "RuntimeError", SIGNAL), {"context": "forkserver"}),
        # Killed for memory, or out of /dev/shm: other causes.
        (raised(0, "RuntimeError", "DataLoader worker (pid 7) is killed by signal: Killed. "), {}),
        (
            raised(0, "RuntimeError", "DataLoader worker (pid 7) is killed by signal: Bus error. "),
            {},
        ),
        (raised(0, "RuntimeError", "CUDA error: initialization error"), {}),
        (ending(0, "stopped"), {}),
    ],
)
def test_quiet_where_it_was_something_else(
    findings: Findings, one: RankEnding, more: dict[str, object]
) -> None:
    assert findings(CAUSE, run(one), loading(**more)) == ()
