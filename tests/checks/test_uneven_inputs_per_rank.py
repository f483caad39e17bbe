from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from ddoctor import engine
from ddoctor.evidence.live import LiveLook
from ddoctor.evidence.loading import Loader, Loading
from ddoctor.evidence.section import Evidence
from ddoctor.evidence.wrapping import Wrapper, Wrapping
from ddoctor.models import Confidence, Severity
from tests.conftest import Findings
from tests.live_look import block, in_collective, in_reduction, look, moving, standing
from tests.training_loaders import loader_with
from tests.training_run import echoing, ending, run, user

CAUSE = "uneven-inputs-per-rank"


def loader(rank: int, batches: int | None, ended: Sequence[int] = (), **more: object) -> Loader:
    plain = loader_with(
        rank=rank,
        host="a",
        dataset="Sounds",
        items=640,
        batch_size=None,
        batches=batches,
        sampler="DynamicBucketing",
        taken=30,
        epoch_batches=tuple(ended),
    )
    return msgspec.structs.replace(plain, **more)


def loading(*batches: int | None, ended: Sequence[Sequence[int]] = (), **more: object) -> Loading:
    """Ranks with so many batches, and with epochs that had so many when they ended."""
    return Loading(
        loaders=tuple(
            loader(rank, count, ended[rank] if ended else (), **more)
            for rank, count in enumerate(batches)
        )
    )


def wrapped(kind: str = "ddp") -> Wrapping:
    wrapper = Wrapper(
        rank=0,
        kind=kind,  # type: ignore[arg-type]
        name="Net",
        parameters=10,
        parameter_bytes=40,
        trainable_bytes=40,
    )
    return Wrapping(wrappers=(wrapper,))


def test_a_rank_has_a_batch_more(findings: Findings) -> None:
    (finding,) = findings(CAUSE, loading(40, 40, 41, 40), wrapped())
    assert finding.severity is Severity.ERROR
    assert finding.confidence is Confidence.LIKELY
    assert finding.where.ranks == (2,)
    assert "has 40 batches on ranks 0-1, 3 and 41 on rank 2" in finding.because
    assert "unless all ranks leave the epoch together" in finding.because
    assert "drop_last=True" in finding.fixes[0].paste
    assert "ReduceOp.MIN" in finding.fixes[1].paste


def test_of_two_ranks_the_shorter_one(findings: Findings) -> None:
    (finding,) = findings(CAUSE, loading(41, 40), wrapped())
    assert finding.where.ranks == (1,)


def test_a_stream_shows_it_at_the_end_of_an_epoch(findings: Findings) -> None:
    section = loading(None, None, ended=((20, 20), (20, 21)), kind="iterable", items=None)
    (finding,) = findings(CAUSE, section, wrapped())
    assert "20 batches on rank 0 and 21 on rank 1" in finding.because
    assert finding.evidence[0].source == "epochs that ended"
    assert "ReduceOp.MIN" in finding.fixes[0].paste


def test_the_longer_rank_hung(findings: Findings) -> None:
    ended = run(ending(0, "finished", steps=40), ending(1, "hung", steps=40, doing="backward"))
    (finding,) = findings(CAUSE, loading(40, 41), wrapped(), ended)
    assert finding.confidence is Confidence.CERTAIN
    assert "rank 1 waited forever" in finding.because
    assert "unless" not in finding.because


def test_it_explains_the_error_of_the_longer_rank() -> None:
    ended = run(ending(0, "finished", steps=40), echoing(1))
    report = engine.examine(Evidence([loading(40, 41), wrapped(), ended]), "run")
    assert [one.cause for one in report.findings] == [CAUSE]
    assert "an epoch of the loader" in report.findings[0].because


@pytest.mark.parametrize(
    ("section", "kind"),
    [
        (loading(40, 40), "ddp"),
        # Nobody waits for anybody.
        (loading(40, 41), "none"),
        # They differ, but were left together.
        (loading(40, 41, ended=((40, 40), (40, 40))), "ddp"),
        # Nothing is known of one of them.
        (loading(40, None), "ddp"),
        (loading(40), "ddp"),
    ],
)
def test_quiet_where_all_have_as_many(findings: Findings, section: Loading, kind: str) -> None:
    assert findings(CAUSE, section, wrapped(kind)) == ()


def test_quiet_where_all_came_to_the_end(findings: Findings) -> None:
    ended = run(ending(0, "finished"), ending(1, "finished"))
    assert findings(CAUSE, loading(40, 41), wrapped(), ended) == ()


def test_quiet_about_two_loaders_of_one_line(findings: Findings) -> None:
    several = Loading(loaders=(*loading(40, 40).loaders, *loading(60, 60).loaders))
    assert findings(CAUSE, several, wrapped()) == ()


EPOCHS = block(30, 60, "for epoch in range(3):")
BATCHES = block(35, 45, "for batch in loader:")
SAVED = block(48, 50, "if rank == 0:")


def test_a_live_rank_that_has_left_the_loop(findings: Findings) -> None:
    live = look(
        in_reduction(0, (EPOCHS, BATCHES)),
        in_collective(1, "barrier", 50, (EPOCHS,)),
        in_reduction(2, (EPOCHS, BATCHES)),
    )
    (finding,) = findings(CAUSE, live)
    assert finding.severity is Severity.ERROR
    assert finding.where.ranks == (1,)
    assert "loop at train.py:35 (`for batch in loader:`)" in finding.because
    assert "rank 1 has left the loop and waits in barrier at train.py:50" in finding.because
    assert "ranks 0, 2 are still in it and wait in backward at train.py:40" in finding.because


def test_a_live_run_of_which_one_has_come_to_its_end(findings: Findings) -> None:
    live = look(in_reduction(0, (BATCHES,)), missing=(1,))
    (finding,) = findings(CAUSE, live)
    assert finding.where.ranks == (1,)
    assert "rank 1 finished the script" in finding.because


@pytest.mark.parametrize(
    "live",
    [
        look(moving(0), moving(1)),
        look(in_reduction(0, (EPOCHS, BATCHES)), in_reduction(1, (EPOCHS, BATCHES))),
        # Other places of the same loop, before it, and none at all.
        look(in_reduction(0, (BATCHES,)), in_collective(1, "barrier", 44, (BATCHES,))),
        look(in_reduction(0, (BATCHES,)), in_collective(1, "barrier", 20)),
        look(in_reduction(0), in_collective(1, "barrier", 50)),
        # Out of the loop it does something else; and a rank is dead.
        look(in_reduction(0, (BATCHES,)), standing(1, "rest", user(50, function="train"))),
        look(in_reduction(0, (BATCHES,)), missing=(1,), supervised=False),
        # Not a loop.
        look(in_collective(0, "barrier", 49, (SAVED,)), in_collective(1, "all_reduce", 55)),
    ],
)
def test_quiet_on_a_live_run(findings: Findings, live: LiveLook) -> None:
    assert findings(CAUSE, live) == ()


def test_whom_another_rank_left_alone_did_wait_for_it(findings: Findings) -> None:
    """Whatever wraps the model: the loop may reduce the gradients itself."""
    ended = run(ending(0, "finished", steps=40), echoing(1))
    (finding,) = findings(CAUSE, loading(40, 41), wrapped("none"), ended)
    assert "an epoch of the loader" in finding.because
