from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from ddoctor.evidence.loading import DataSeen, FirstBatches, Loading
from ddoctor.evidence.training import TrainingRun
from ddoctor.models import Confidence
from tests.conftest import Findings
from tests.training_loaders import loader_with

CAUSE = "missing-set-epoch"
FIRST = ("a", "b", "c", "d")
OTHER = ("c", "a", "d", "b")


def loading(ranks: int = 2, **more: object) -> Loading:
    plain = loader_with(
        items=640,
        batches=10,
        shuffle=True,
        replicas=2,
        taken=60,
    )
    return Loading(
        loaders=tuple(msgspec.structs.replace(plain, rank=rank, **more) for rank in range(ranks))
    )


def seen(*epochs: Sequence[str], taken: Sequence[int | None] = (None,) * 9) -> DataSeen:
    """How the epochs began, on both ranks."""
    return DataSeen(
        epochs=tuple(
            FirstBatches(
                rank=rank,
                name="train.py:42",
                epoch=number,
                by="indices",
                batches=tuple(f"{rank}{batch}" for batch in batches),
                taken=taken[number],
            )
            for rank in range(2)
            for number, batches in enumerate(epochs)
        )
    )


def test_set_epoch_is_missing(findings: Findings) -> None:
    (finding,) = findings(CAUSE, loading(seeded_by_epoch=False))
    assert finding.confidence is Confidence.LIKELY
    assert "train.py:42" in finding.because
    assert finding.where.ranks == ()
    assert "loader.sampler.set_epoch(epoch)" in finding.fixes[0].paste


def test_the_epochs_begin_alike(findings: Findings) -> None:
    section = loading(seeded_by_epoch=False)
    (finding,) = findings(CAUSE, section, seen(FIRST, FIRST, FIRST))
    assert finding.confidence is Confidence.CERTAIN
    assert "3 epochs began with the same batches" in finding.because


def test_set_epoch_of_another_sampler(findings: Findings) -> None:
    assert findings(CAUSE, loading(seeded_by_epoch=True), seen(FIRST, FIRST))


def test_accelerate_takes_it_on_the_loader(findings: Findings) -> None:
    run = TrainingRun(command=("train.py",), seconds=9.0, ranks=(), framework="accelerate")
    (finding,) = findings(CAUSE, loading(seeded_by_epoch=False), run)
    assert "    loader.set_epoch(epoch)" in finding.fixes[0].paste


@pytest.mark.parametrize("seeded", [True, None])
def test_quiet_with_set_epoch_or_without_a_second_epoch(
    findings: Findings, seeded: bool | None
) -> None:
    assert findings(CAUSE, loading(seeded_by_epoch=seeded)) == ()


@pytest.mark.parametrize("shuffle", [False, None])
def test_quiet_where_nothing_is_shuffled(findings: Findings, shuffle: bool | None) -> None:
    section = loading(shuffle=shuffle, seeded_by_epoch=False)
    assert findings(CAUSE, section, seen(FIRST, FIRST)) == ()


def test_quiet_where_the_orders_differ_by_other_means(findings: Findings) -> None:
    assert findings(CAUSE, loading(seeded_by_epoch=False), seen(FIRST, OTHER)) == ()


def test_quiet_about_a_look_before_the_training(findings: Findings) -> None:
    section = seen(FIRST, FIRST, OTHER, taken=(1, 10, 4))
    assert findings(CAUSE, loading(seeded_by_epoch=None), section) == ()


def test_quiet_about_a_look_and_a_single_epoch(findings: Findings) -> None:
    section = seen(FIRST, FIRST, taken=(1, 60))
    assert findings(CAUSE, loading(seeded_by_epoch=None), section) == ()


def test_quiet_about_a_few_items(findings: Findings) -> None:
    section = loading(batch_size=1, items=6, seeded_by_epoch=None)
    assert findings(CAUSE, section, seen(FIRST, FIRST)) == ()
