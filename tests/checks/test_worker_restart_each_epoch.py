from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from ddoctor.evidence.live import LiveLook, Turn
from ddoctor.evidence.loading import CurvePoint, Loader, LoaderCurve, Loading
from ddoctor.evidence.probes import RankPlace
from ddoctor.evidence.steps import Phase, RankSteps, Steps
from ddoctor.evidence.training import TrainingRun
from ddoctor.models import Confidence
from ddoctor.script.reader import read
from tests.conftest import Findings
from tests.live_look import LINE, TRAINING, look, moving, standing
from tests.training_loaders import loader_with

CAUSE = "worker-restart-each-epoch"
COUNT = 60
LENGTH = 20
"""Batches of an epoch."""


def steps(edge: float, usual: float = 0.001, ranks: int = 2) -> Steps:
    """Steps of 0.04 s, and at the start of each epoch so many seconds in the loader."""
    waits = tuple(edge if step % LENGTH == 5 else usual for step in range(COUNT))
    return Steps(
        warm_up=5,
        ranks=tuple(
            RankSteps(
                place=RankPlace(rank=rank, host="node-0", device="cpu"),
                phases=(
                    Phase(name="loader", seconds=waits),
                    Phase(name="forward", seconds=(0.04,) * COUNT),
                ),
            )
            for rank in range(ranks)
        ),
    )


def loader(rank: int = 0, edge: float = 0.5, batch: float = 0.05, **more: object) -> Loader:
    """A loader with 4 workers whose first batch of an epoch comes after so long."""
    plain = loader_with(
        rank=rank,
        items=640,
        batches=LENGTH,
        num_workers=4,
        sampler="RandomSampler",
        fetched=32 * COUNT,
        fetch_seconds=batch * COUNT,
        collated=COUNT,
        taken=COUNT,
        wait_seconds=(0.001,) * COUNT,
        wait_steps=tuple(range(COUNT)),
        first_batches=tuple(range(5, COUNT, LENGTH)),
        starts=(0.9, 0.04, 0.04, 0.04),
        first_waits=(2.0, *(edge - 0.04,) * 3),
        epoch_batches=(LENGTH,) * 3,
    )
    return msgspec.structs.replace(plain, **more)


def loading(*loaders: Loader) -> Loading:
    return Loading(loaders=loaders)


def test_short_epochs_pay_for_their_workers(findings: Findings) -> None:
    section = loading(loader(0, worker_memory=512.0), loader(1))
    (finding,) = findings(CAUSE, steps(0.5), section)
    assert finding.confidence is Confidence.CERTAIN
    assert finding.where.ranks == ()
    assert "each epoch of 20 batches at train.py:42 starts 4 workers again" in finding.because
    assert "first batch takes 0.500 s, 0.449 s of it to start them" in finding.because
    assert finding.cost is not None
    assert finding.cost.value == pytest.approx(0.45 / (20 * 0.041 + 0.5), abs=0.02)
    (fix,) = finding.fixes
    assert fix.settings == ("loader.persistent_workers=true",)
    assert "2 GiB per rank" in fix.caution


def test_an_iterator_for_each_batch(findings: Findings) -> None:
    """``next(iter(loader))`` in the loop: all batches are first ones."""
    each = loader(
        batch=0.005,
        wait_seconds=(0.05,) * COUNT,
        first_batches=tuple(range(COUNT)),
        starts=(0.04,) * COUNT,
        first_waits=(0.05,) * COUNT,
        epoch_batches=(),
    )
    waits = Phase(name="loader", seconds=(0.09,) * COUNT)
    forward = Phase(name="forward", seconds=(0.1,) * COUNT)
    rank = RankSteps(place=RankPlace(rank=0, host="node-0", device="cpu"), phases=(waits, forward))
    (finding,) = findings(CAUSE, Steps(warm_up=5, ranks=(rank,)), loading(each))
    assert "next(iter(…)) for each batch of train.py:42 starts 4 workers again" in finding.because
    assert "batches = iter(loader)" in finding.fixes[0].paste


def unjudged(context: str, *first_waits: float) -> Loading:
    """Epochs whose first steps are not judged."""
    return loading(
        loader(
            context=context,
            first_batches=(),
            starts=(0.03,) * len(first_waits),
            first_waits=first_waits,
            epoch_batches=(LENGTH,) * (len(first_waits) - 1),
        )
    )


def test_the_step_that_begins_an_epoch_is_not_judged(findings: Findings) -> None:
    (finding,) = findings(CAUSE, steps(0.001), unjudged("spawn", 1.0, 0.9))
    assert finding.cost is not None
    assert finding.cost.value == pytest.approx(0.88 / (20 * 0.041 + 0.93), abs=0.02)


@pytest.mark.parametrize(
    "section",
    [
        pytest.param(unjudged("fork", 1.0, 0.9), id="the second epoch of forked workers"),
        pytest.param(unjudged("spawn", 1.0), id="one epoch"),
        pytest.param(unjudged("spawn", 1.0, 0.06), id="workers that start at once"),
    ],
)
def test_quiet_where_no_judged_step_begins_an_epoch(findings: Findings, section: Loading) -> None:
    assert findings(CAUSE, steps(0.001), section) == ()


def short_epochs(length: int, edge: float, **more: object) -> tuple[Steps, Loading]:
    """Epochs of so few steps, each of which begins with such a wait."""
    waits = tuple(edge if step % length == 0 else 0.001 for step in range(COUNT))
    forward = Phase(name="forward", seconds=(0.04,) * COUNT)
    rank = RankSteps(
        place=RankPlace(rank=0, host="node-0", device="cpu"),
        phases=(Phase(name="loader", seconds=waits), forward),
    )
    begun = tuple(range(0, COUNT, length))
    one = loader(
        edge=edge,
        batch=0.001,
        batches=length,
        first_batches=begun,
        starts=(0.05,) * len(begun),
        first_waits=(edge - 0.05,) * len(begun),
        epoch_batches=(length,) * len(begun),
    )
    section = loading(msgspec.structs.replace(one, **more))
    return Steps(warm_up=5, ranks=(rank,)), section


@pytest.mark.parametrize("length", [1, 2, 3])
def test_an_epoch_may_be_as_short_as_a_step(findings: Findings, length: int) -> None:
    (finding,) = findings(CAUSE, *short_epochs(length, 0.09))
    assert finding.cost is not None
    whole = 0.04 * length + 0.001 * (length - 1) + 0.09
    assert finding.cost.value == pytest.approx(0.089 / whole, abs=0.03)


@pytest.mark.parametrize("length", [1, 2, 3])
def test_short_epochs_with_workers_that_stay(findings: Findings, length: int) -> None:
    assert findings(CAUSE, *short_epochs(length, 0.09, persistent_workers=True)) == ()
    assert findings(CAUSE, *short_epochs(length, 0.051)) != ()
    assert findings(CAUSE, *short_epochs(length, 0.051, num_workers=0)) == ()


LOOPS = (
    "from torch.nn.parallel import DistributedDataParallel\n"
    "model = DistributedDataParallel(net)\n"
    "for epoch in range(9):\n"
    "    for batch in loader:\n"
    "        model(batch).backward()\n"
    "        optimizer.step()\n"
)


def begun_once(**more: object) -> Loading:
    """The run ends within its first epoch."""
    once = loader(first_batches=(), starts=(0.1,), first_waits=(1.9,), epoch_batches=())
    return loading(msgspec.structs.replace(once, **more))


def alone(seconds: float, rank: int = 0) -> LoaderCurve:
    point = CurvePoint(
        rank=rank,
        name="train.py:42",
        num_workers=3,
        seconds_per_batch=0.01,
        batches=9,
        start_seconds=seconds,
    )
    return LoaderCurve(points=(point,))


def test_a_run_within_its_first_epoch(findings: Findings, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(LOOPS)
    script = read(path, ())
    (finding,) = findings(CAUSE, steps(0.001), begun_once(), alone(1.2), script)
    assert "the first batch took 2.00 s, and 1.20 s of the loader alone" in finding.because
    assert finding.cost is not None
    # Without a batch of 0.05 s, in an epoch of 20 steps.
    assert finding.cost.value == pytest.approx(1.15 / (1.15 + 20 * 0.041), abs=0.02)
    assert finding.severity.value == "warning"


@pytest.mark.parametrize(
    ("section", "second", "epochs"),
    [
        pytest.param(begun_once(), 0.1, LOOPS, id="one-time work"),
        pytest.param(begun_once(first_waits=(0.03,)), 1.2, LOOPS, id="it began at once"),
        pytest.param(begun_once(batches=2000), 1.2, LOOPS, id="long epochs"),
        pytest.param(begun_once(batches=None), 1.2, LOOPS, id="epochs of unknown length"),
        pytest.param(begun_once(persistent_workers=True), 1.2, LOOPS, id="workers that stay"),
        pytest.param(begun_once(num_workers=0), 1.2, LOOPS, id="no workers"),
        pytest.param(
            begun_once(),
            1.2,
            LOOPS.replace("for epoch in range(9):", "if True:"),
            id="one epoch",
        ),
    ],
)
def test_quiet_on_a_run_within_its_first_epoch(
    findings: Findings, tmp_path: Path, section: Loading, second: float, epochs: str
) -> None:
    path = tmp_path / "train.py"
    path.write_text(epochs)
    told = findings(CAUSE, steps(0.001), section, alone(second), read(path, ()))
    assert [one for one in told if one.confidence is Confidence.LIKELY] == []


def test_one_rank_alone(findings: Findings) -> None:
    section = loading(loader(0, persistent_workers=True), loader(1))
    (finding,) = findings(CAUSE, steps(0.5), section)
    assert finding.where.ranks == (1,)


def test_without_the_time_for_a_batch_the_start_itself_counts(findings: Findings) -> None:
    section = loading(
        loader(collated=0, starts=(0.9, 0.4, 0.4, 0.4), first_waits=(1, 0.1, 0.1, 0.1))
    )
    (finding,) = findings(CAUSE, steps(0.5, ranks=1), section)
    assert finding.confidence is Confidence.LIKELY
    assert "0.400 s of it to start them" in finding.because


def test_spawned_workers_import_for_longer_than_a_batch_can_take(findings: Findings) -> None:
    one = loader(collated=0, starts=(0.02,) * 4, first_waits=(2.0, 1.98, 1.98, 1.98))
    (finding,) = findings(CAUSE, steps(2.0, ranks=1), loading(one))
    # Four workers deliver a batch every 0.041 s: one takes 0.164 s at most.
    assert "2.000 s, 1.835 s of it to start them" in finding.because


def test_two_epochs_are_enough_where_the_start_itself_was_timed(findings: Findings) -> None:
    spawned = loader(collated=0, starts=(0.95, 0.92), first_waits=(0.02, 0.02))
    (finding,) = findings(CAUSE, steps(0.94, ranks=1), loading(spawned))
    assert finding.severity.value == "warning"


def test_quiet_where_the_first_batch_may_be_all_of_the_wait(findings: Findings) -> None:
    one = loader(collated=0, starts=(0.02,) * 4, first_waits=(0.2, 0.16, 0.16, 0.16))
    assert findings(CAUSE, steps(0.18, ranks=1), loading(one)) == ()


def test_trainer_has_its_own_words(findings: Findings) -> None:
    run = TrainingRun(command=("train.py",), seconds=9.0, ranks=(), framework="transformers")
    (finding,) = findings(CAUSE, steps(0.5, ranks=1), loading(loader()), run)
    assert "dataloader_persistent_workers=True" in finding.fixes[0].paste


@pytest.mark.parametrize(
    ("section", "edge"),
    [
        (loader(persistent_workers=True), 0.5),
        # No workers, nothing to start.
        (loader(num_workers=0), 0.5),
        # Quickly started.
        (loader(edge=0.1), 0.1),
        # The first batch itself takes that long, and so it would with workers that live on.
        (loader(batch=0.45), 0.5),
        # An accident of one epoch.
        (loader(first_waits=(2.0, 0.46), starts=(0.9, 0.04)), 0.5),
        (loader(first_waits=(2.0, 0.46, 0.06, 0.06)), 0.06),
        # The steps themselves show no such pause: it was over before they began.
        (loader(), 0.001),
        # A long epoch ended while it was watched.
        (loader(batches=5000, epoch_batches=(5000,), first_waits=(0.5,)), 0.5),
    ],
)
def test_quiet_where_little_is_lost(findings: Findings, section: Loader, edge: float) -> None:
    assert findings(CAUSE, steps(edge, ranks=1), loading(section)) == ()


STARTING = {"loader-start": 35, "loader-wait": 15, "forward": 20, "backward-or-wait": 30}


def test_a_live_run_that_starts_its_workers_again_and_again(findings: Findings) -> None:
    (finding,) = findings(CAUSE, look(*(moving(one, STARTING, workers=4) for one in (0, 1))))
    assert finding.where.ranks == ()
    assert "waits 50% of the time" in finding.because
    assert "persistent_workers=True" in finding.fixes[0].paste


EPOCHS = {"loader-wait": 30, "forward": 40, "backward-or-wait": 30}


def restarted(times: int, visits: int) -> LiveLook:
    """Ranks whose workers were replaced so often, and that were sampled so often at the loader."""
    ranks = (moving(one, EPOCHS, workers=4, visits=visits) for one in (0, 1))
    return look(*(msgspec.structs.replace(one, restarts=times) for one in ranks))


def test_workers_of_a_live_run_that_are_replaced(findings: Findings) -> None:
    (finding,) = findings(CAUSE, restarted(times=2, visits=2))
    assert "waits 30% of the time" in finding.because
    # An epoch ended once; it may wait for most batches, not for the first ones.
    assert findings(CAUSE, restarted(times=1, visits=2)) == ()
    assert findings(CAUSE, restarted(times=4, visits=40)) == ()


def test_one_rank_of_a_live_run_that_does(findings: Findings) -> None:
    (finding,) = findings(CAUSE, look(moving(0, TRAINING), moving(1, STARTING)))
    assert finding.where.ranks == (1,)


@pytest.mark.parametrize(
    "live",
    [
        look(moving(0), moving(1)),
        # Little of it; once, at the beginning; nothing moves.
        look(*(moving(one, {**TRAINING, "loader-start": 4}) for one in (0, 1))),
        look(*(moving(one, STARTING, visits=1) for one in (0, 1))),
        look(standing(0, "loader-start", LINE), standing(1, "loader-start", LINE)),
    ],
)
def test_quiet_on_a_live_run(findings: Findings, live: LiveLook) -> None:
    assert findings(CAUSE, live) == ()


@pytest.mark.parametrize(
    ("stretches", "told"),
    [
        ((30,), True),
        ((26, 4), True),
        ((10, 10, 10), False),  # It waits for batches in between as well.
    ],
)
def test_workers_that_were_replaced_once(
    findings: Findings, stretches: tuple[int, ...], *, told: bool
) -> None:
    """How often that happens is not known: a note, and no loader that cannot keep up."""
    turns = [
        turn
        for samples in stretches
        for turn in (Turn(name="loader-wait", samples=samples), Turn(name="forward", samples=20))
    ]
    once = restarted(times=1, visits=len(stretches))
    ranks = tuple(msgspec.structs.replace(one, turns=tuple(turns)) for one in once.ranks)
    found = findings(CAUSE, msgspec.structs.replace(once, ranks=ranks))
    assert [one.severity.value for one in found] == ["note"] * told
    starved = findings("dataloader-bottleneck", msgspec.structs.replace(once, ranks=ranks))
    assert (starved == ()) is told
