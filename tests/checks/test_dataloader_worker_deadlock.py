from __future__ import annotations

import msgspec
import pytest

from ddoctor import engine
from ddoctor.evidence.frames import Frame
from ddoctor.evidence.live import LiveLook, LiveWorker
from ddoctor.evidence.loading import Loading
from ddoctor.evidence.section import Evidence
from ddoctor.evidence.training import ENGINE, RankEnding
from ddoctor.models import Confidence, Severity
from tests.conftest import Findings
from tests.live_look import LINE, in_reduction, look, moving, standing
from tests.training_loaders import loader_with
from tests.training_run import LATE, echoing, ending, library, raised, run, user

CAUSE = "dataloader-worker-deadlock"
TAKING = (
    user(20, "for batch in loader:"),
    library("torch/utils/data/dataloader.py", 740, "__next__"),
    library("torch/utils/data/dataloader.py", 1284, "_try_get_data"),
    library("../multiprocessing/queues.py", 113, "get"),
)
WAITING = ending(0, "hung", doing="all_reduce", stack=(user(44),))


def stuck(*stack: Frame, doing: str = "loader") -> RankEnding:
    return ending(1, "hung", doing=doing, doing_seconds=90.0, stack=stack)


def loading(num_workers: int = 4, context: str = "fork", rank: int = 1) -> Loading:
    return Loading(
        loaders=(
            loader_with(
                rank=rank,
                host="a",
                name="train.py:12",
                dataset="Images",
                items=100,
                batch_size=8,
                batches=12,
                num_workers=num_workers,
                context=context,
                sampler="RandomSampler",
            ),
        )
    )


@pytest.mark.parametrize("of_class", ["", "_MultiProcessingDataLoaderIter."])
def test_a_rank_that_waits_for_its_workers(findings: Findings, of_class: str) -> None:
    """py-spy names the class of a method, and tracebacks do not."""
    stack = (
        msgspec.structs.replace(one, function=of_class + one.function)
        if "torch" in one.file
        else one
        for one in TAKING
    )
    (finding,) = findings(CAUSE, run(WAITING, stuck(*stack)), loading())
    assert finding.severity is Severity.ERROR
    assert finding.where.ranks == (1,)
    assert (
        "rank 1 (pid 101 on a) waited for 90 s for a batch of its 4 workers (fork, Images) at "
        "train.py:20 in main, after 40 steps; rank 0 waited in all_reduce at train.py:44"
    ) in finding.because
    assert "spawn" in finding.fixes[1].paste


def test_the_stack_alone_tells_and_so_does_the_phase(findings: Findings) -> None:
    assert len(findings(CAUSE, run(WAITING, stuck(*TAKING)))) == 1
    assert len(findings(CAUSE, run(WAITING, stuck()), loading())) == 1


def test_while_the_recorder_rests_the_stack_alone_tells(findings: Findings) -> None:
    inside = (user(30, "loss.backward()"), library("torch/autograd/graph.py", 870, ENGINE))
    waiting = ending(0, "hung", doing="rest", stack=inside)
    assert waiting.waits
    (finding,) = findings(CAUSE, run(waiting, stuck(*TAKING, doing="rest")), loading())
    assert finding.where.ranks == (1,)
    assert "rank 0 waited at train.py:30" in finding.because
    assert findings(CAUSE, run(waiting, stuck(user(31), doing="rest")), loading()) == ()


def test_spawn_is_no_fix_for_who_has_it(findings: Findings) -> None:
    (finding,) = findings(CAUSE, run(WAITING, stuck(*TAKING)), loading(context="spawn"))
    assert not [fix for fix in finding.fixes if "spawn" in fix.paste]


def test_the_script_had_set_a_limit() -> None:
    gave_up = raised(1, "RuntimeError", "DataLoader timed out after 60 seconds", line=20)
    (finding,) = engine.examine(Evidence([run(echoing(0), gave_up)]), "run").findings
    assert finding.cause == CAUSE
    assert set(finding.consequences) == {"dead-rank", "first-failure-masked"}


def test_the_others_gave_up_first() -> None:
    section = run(echoing(0, LATE), stuck(*TAKING))
    (finding,) = engine.examine(Evidence([section]), "run").findings
    assert finding.cause == CAUSE


def test_quiet_where_the_main_process_loads_by_itself(findings: Findings) -> None:
    own = (user(20), library("torch/utils/data/_utils/fetch.py", 54, "fetch"), user(9, "read()"))
    assert findings(CAUSE, run(WAITING, stuck(*own)), loading(0)) == ()
    assert findings(CAUSE, run(WAITING, stuck()), loading(0)) == ()


def test_quiet_where_it_hangs_elsewhere(findings: Findings) -> None:
    assert findings(CAUSE, run(WAITING, stuck(user(30), doing="forward")), loading()) == ()
    assert findings(CAUSE, run(WAITING, stuck(doing="loader"))) == ()
    assert findings(CAUSE, run(WAITING, stuck(), ending(2, "hung")), loading(rank=2)) == ()


def test_quiet_where_another_rank_failed(findings: Findings) -> None:
    assert findings(CAUSE, run(raised(0, "ValueError", "x"), stuck(*TAKING)), loading()) == ()


def test_quiet_where_it_only_is_slow(findings: Findings) -> None:
    section = run(ending(0, "stopped"), ending(1, "stopped", doing="loader", stack=TAKING))
    assert findings(CAUSE, section, loading()) == ()


IDLE = (
    library("torch/utils/data/_utils/worker.py", 323, "_worker_loop"),
    library("multiprocessing/queues.py", 113, "get"),
)


def worker(*stack: Frame, still: bool = True) -> LiveWorker:
    return LiveWorker(pid=201, state="sleeping", cpu_seconds=0.0, stack=stack, still=still)


def at_work(*stack: Frame) -> LiveWorker:
    return msgspec.structs.replace(worker(*stack), cpu_seconds=9.0)


def test_a_live_worker_that_stands(findings: Findings) -> None:
    stuck = worker(IDLE[0], user(12, "lock.acquire()", "__getitem__"))
    waiting = standing(1, "loader-wait", LINE, workers=(worker(*IDLE), stuck))
    (finding,) = findings(CAUSE, look(in_reduction(0), waiting))
    assert finding.severity is Severity.ERROR
    assert finding.where.ranks == (1,)
    assert "1 of its 2 workers" in finding.because
    assert "`lock.acquire()`" in finding.because
    assert "rank 0 waits in backward" in finding.because


@pytest.mark.parametrize("number", [1, 2])
def test_live_workers_that_a_signal_has_stopped(findings: Findings, number: int) -> None:
    stopped = [
        msgspec.structs.replace(worker(*IDLE), pid=201 + one, state="stopped")
        for one in range(number)
    ]
    waiting = standing(1, "loader-wait", LINE, workers=(*stopped,))
    (finding,) = findings(CAUSE, look(in_reduction(0), waiting))
    assert finding.confidence is Confidence.CERTAIN
    assert f"{'its worker (pid 201) is' if number == 1 else '2 of its 2 workers are'} stopped" in (
        finding.because
    )
    assert finding.fixes[0].paste.startswith("kill -CONT 201")
    assert not any("spawn" in fix.paste for fix in finding.fixes)


def test_live_workers_that_are_gone(findings: Findings) -> None:
    (finding,) = findings(CAUSE, look(in_reduction(0), standing(1, "loader-wait", LINE)))
    assert "its workers no longer exist" in finding.because


@pytest.mark.parametrize(
    "live",
    [
        look(moving(0, workers=2), moving(1, workers=2)),
        look(moving(0, {"loader-wait": 60, "forward": 40}, workers=2)),
        # Nobody waits for a loader; the look was too short for a slow batch.
        look(in_reduction(0), standing(1, "rest", LINE)),
        look(in_reduction(0), standing(1, "loader-wait", LINE), seconds=2.0),
        # One of the workers computes all the time, at one line or not; batches come.
        look(
            standing(
                0, "loader-wait", LINE, workers=(worker(*IDLE), at_work(user(12, "resize(item)")))
            )
        ),
        look(msgspec.structs.replace(standing(0, "loader-wait", LINE), wakes=300)),
    ],
)
def test_quiet_on_a_live_run(findings: Findings, live: LiveLook) -> None:
    assert findings(CAUSE, live) == ()
