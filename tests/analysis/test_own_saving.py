"""What a function does around a save is part of it; the training loop is not."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from ddoctor.analysis.own_saving import told
from ddoctor.evidence.frames import Frame
from ddoctor.evidence.live import Activity, LiveRank
from tests.analysis.test_live_loop import MAIN, STEP, rank
from tests.training_run import user

TRACKS = user(33, "self.track(loss)", "train")
WRITES = user(68, "torch.save(state, file)", "Trainer.save")
FLUSHES = user(70, "os.fsync(file.fileno())", "Trainer.save")
HASHES = user(90, "hashlib.sha256(data)", "digest")


def seen(*rest: tuple[Frame, ...], save: tuple[Frame, ...] = (MAIN, TRACKS, WRITES)) -> LiveRank:
    """A rank that saves, and does other work for 10 samples at each of these places."""
    found = rank(0, *((10, calls) for calls in rest))
    saves = Activity(name="checkpoint", samples=5, calls=save, entered=len(save))
    return replace(found, activities=(*found.activities, saves))


def share(one: LiveRank, name: str) -> int:
    return sum(row.samples for row in one.activities if row.name == name)


@pytest.mark.parametrize("inner", [(FLUSHES,), (user(71, "digest(path)", "Trainer.save"), HASHES)])
def test_what_is_done_around_a_save(inner: tuple[Frame, ...]) -> None:
    one = told(seen((MAIN, TRACKS, *inner)))
    assert (share(one, "checkpoint"), share(one, "rest")) == (15, 0)


@pytest.mark.parametrize(
    ("calls", "save"),
    [
        # Another function; and a loop that saves by itself.
        ((MAIN, user(34, "report(loss)", "train"), HASHES), (MAIN, TRACKS, WRITES)),
        ((MAIN, user(35, "print(loss)", "train")), (MAIN, user(36, "torch.save(a, b)", "train"))),
    ],
)
def test_other_work_is_no_save(calls: tuple[Frame, ...], save: tuple[Frame, ...]) -> None:
    one = told(seen(calls, save=save))
    assert (share(one, "checkpoint"), share(one, "rest")) == (5, 10)


def test_without_a_save_nothing_changes() -> None:
    one = rank(0, (10, (MAIN, TRACKS, FLUSHES)))
    assert told(one) == one
    assert {row.name for row in one.activities} == {"rest", *(name for name, *_ in STEP)}
