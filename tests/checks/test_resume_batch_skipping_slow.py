from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest

from ddoctor import engine
from ddoctor.evidence.frames import Frame
from ddoctor.evidence.live import LiveLook, LiveRank
from ddoctor.evidence.section import Evidence
from ddoctor.models import Severity
from tests.conftest import Findings
from tests.live_look import LINE, STARVED, in_collective, look, moving, standing
from tests.training_run import library, user

CAUSE = "resume-batch-skipping-slow"
LOADING: Mapping[str, int] = {"loader-wait": 97, "rest": 3}
SKIP = "if step < start:"
HEAD = user(30, "for step, batch in enumerate(loader):", "train")
TRAIN = user(9, "trainer.train(resume_from_checkpoint=True)")
NEXT = library("torch/utils/data/dataloader.py", 725, "_BaseDataLoaderIter.__next__")
SKIPS = library("accelerate/data_loader.py", 1376, "SkipDataLoader.__iter__")
SHARD = library("accelerate/data_loader.py", 600, "DataLoaderShard.__iter__")
DISPATCHES = library("accelerate/data_loader.py", 919, "DataLoaderDispatcher.__iter__")
ASKS = library("transformers/trainer.py", 2291, "Trainer.get_batch_samples")
EVALUATES = library("transformers/trainer.py", 2710, "Trainer.evaluation_loop")
BROADCAST = library("torch/distributed/distributed_c10d.py", 3252, "broadcast_object_list")


def skipping(
    number: int, met: Mapping[str, int] = LOADING, *, skip: str = SKIP, wakes: int = 300
) -> LiveRank:
    """A rank that is met at the head of its loop, from which it passes over its batches."""
    rank = moving(number, met, asleep=0.95, workers=2, line=HEAD, wakes=wakes)
    rows = (msgspec.structs.replace(one, before_skip=skip) for one in rank.activities)
    return msgspec.structs.replace(rank, activities=tuple(rows))


def within(
    number: int, *stack: Frame, met: Mapping[str, int] = LOADING, wakes: int = 300
) -> LiveRank:
    """A rank that a library has load batches."""
    rank = moving(number, met, asleep=0.95, workers=2, line=stack[0], wakes=wakes)
    return msgspec.structs.replace(rank, stack=stack)


def test_the_loop_passes_over_its_batches(findings: Findings) -> None:
    (finding,) = findings(CAUSE, look(skipping(0), skipping(1)))
    assert finding.severity is Severity.WARNING
    assert "ranks 0-1: the main thread takes batch after batch from the workers" in finding.because
    assert "at train.py:30 in train" in finding.because
    assert "for 10 s: `if step < start:` skips these batches" in finding.because
    assert "islice(loader.batch_sampler, start, None)" in finding.fixes[0].paste


def test_it_is_no_slow_loader_then_and_no_deadlock() -> None:
    still = msgspec.structs.replace(skipping(0, {"loader-wait": 100}), still=True)
    for live in (look(skipping(0), skipping(1)), look(still)):
        (finding,) = engine.examine(Evidence([live]), "attach").findings
        assert finding.cause == CAUSE
        assert finding.consequences == ("dataloader-bottleneck",)


@pytest.mark.parametrize(
    ("stack", "who"),
    [((HEAD, SKIPS, NEXT), "SkipDataLoader"), ((TRAIN, ASKS, SHARD, NEXT), "Trainer")],
)
def test_a_library_passes_over_them(findings: Findings, stack: tuple[Frame, ...], who: str) -> None:
    (finding,) = findings(CAUSE, look(within(0, *stack), within(1, *stack)))
    assert who in finding.because
    pastes = [fix.paste for fix in finding.fixes]
    assert any("ignore_data_skip=True" in paste for paste in pastes) is (who == "Trainer")


def test_one_rank_loads_for_all(findings: Findings) -> None:
    loads = within(0, TRAIN, ASKS, DISPATCHES, NEXT, met={"loader-wait": 80, "collective": 20})
    gets = within(1, TRAIN, ASKS, DISPATCHES, BROADCAST, met={"collective": 100}, wakes=600)
    (finding,) = findings(CAUSE, look(loads, gets))
    assert finding.where.ranks == (0,)


@pytest.mark.parametrize(
    "live",
    [
        look(moving(0), moving(1)),
        # It trains by now, and waits for its data, or one of them does.
        look(skipping(0, STARVED), skipping(1, STARVED)),
        look(skipping(0), skipping(1, {"loader-wait": 99, "forward": 1})),
        look(skipping(0), in_collective(1, "barrier", 12)),
        # Nothing is passed over there; nothing tells that batches come.
        look(skipping(0, skip=""), skipping(1, skip="")),
        look(skipping(0, wakes=2), skipping(1, wakes=2)),
        look(skipping(0), skipping(1, wakes=2)),
        look(standing(0, "loader-wait", HEAD), standing(1, "loader-wait", HEAD)),
        # Without workers nothing tells it either.
        look(skipping(0, {"loader": 100})),
        # It was elsewhere, too, at places that are not told.
        look(msgspec.structs.replace(skipping(0), samples=120)),
        # A loader of accelerate's as any other; an evaluation, a forward pass, another line.
        look(within(0, HEAD, SHARD, NEXT)),
        look(within(0, TRAIN, EVALUATES, SHARD, NEXT)),
        look(within(0, HEAD, SKIPS, NEXT, met={"loader-wait": 98, "forward": 2})),
        look(
            msgspec.structs.replace(
                within(0, HEAD, SKIPS, NEXT),
                activities=(
                    *within(0, HEAD, SKIPS, met={"loader-wait": 97}).activities,
                    *within(0, LINE, met={"rest": 3}).activities,
                ),
            )
        ),
    ],
)
def test_quiet(findings: Findings, live: LiveLook) -> None:
    assert findings(CAUSE, live) == ()
