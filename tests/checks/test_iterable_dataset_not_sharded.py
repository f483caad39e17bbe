from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
import pytest

from ddoctor.evidence.loading import DataSeen, FirstBatches, Loading
from ddoctor.evidence.wrapping import Wrapper, Wrapping
from ddoctor.models import Confidence
from tests.conftest import Findings
from tests.training_loaders import loader_with

CAUSE = "iterable-dataset-not-sharded"
COUNT = 8


def loading(ranks: int = 2, **more: object) -> Loading:
    plain = loader_with(
        dataset="Lines",
        kind="iterable",
        items=None,
        batches=None,
        sampler="_InfiniteConstantSampler",
        taken=60,
    )
    return Loading(
        loaders=tuple(msgspec.structs.replace(plain, rank=rank, **more) for rank in range(ranks))
    )


def seen(*ranks: Sequence[str], workers: Sequence[int] = ()) -> DataSeen:
    """The fingerprints of the data of each rank."""
    return DataSeen(
        epochs=tuple(
            FirstBatches(
                rank=rank,
                name="train.py:42",
                epoch=0,
                by="values",
                batches=tuple(batches),
                workers=tuple(workers),
            )
            for rank, batches in enumerate(ranks)
        )
    )


def own(rank: int) -> tuple[str, ...]:
    return tuple(f"{rank}-{batch}" for batch in range(COUNT))


def wrapped(kind: Literal["none", "ddp", "fsdp2"] = "ddp", ranks: int = 2) -> Wrapping:
    return Wrapping(
        wrappers=tuple(
            Wrapper(
                rank=rank,
                kind=kind,
                name="Net",
                parameters=10,
                parameter_bytes=40,
                trainable_bytes=40,
            )
            for rank in range(ranks)
        )
    )


TWICE = tuple(f"{batch // 2}" for batch in range(COUNT))
"""Alternate batches of two workers that both read the whole stream."""


def test_every_rank_reads_the_whole_stream(findings: Findings) -> None:
    (finding,) = findings(CAUSE, seen(own(0), own(0)), loading(), wrapped())
    assert finding.confidence is Confidence.CERTAIN
    assert "gives the same values to all ranks" in finding.because
    assert finding.where.ranks == ()
    assert 'int(os.environ["RANK"])' in finding.fixes[0].paste
    assert finding.fixes[0].paste.startswith("def __iter__(self):  # of Lines")


def test_every_worker_reads_the_whole_stream(findings: Findings) -> None:
    other = tuple(f"other-{batch}" for batch in TWICE)
    section = seen(TWICE, other, workers=(0, 1) * 4)
    (finding,) = findings(CAUSE, section, loading(), wrapped())
    assert finding.confidence is Confidence.CERTAIN
    assert "2 of the 2 workers" in finding.because
    assert finding.where.ranks == ()


def test_the_workers_of_one_rank(findings: Findings) -> None:
    (finding,) = findings(CAUSE, seen(own(0), TWICE, workers=(0, 1) * 4), loading(), wrapped())
    assert finding.where.ranks == (1,)


def test_ranks_and_workers(findings: Findings) -> None:
    found = findings(CAUSE, seen(TWICE, TWICE, workers=(0, 1) * 4), loading(), wrapped())
    assert len(found) == 2


def test_a_stream_of_hugging_face(findings: Findings) -> None:
    section = loading(dataset="IterableDataset")
    (finding,) = findings(CAUSE, seen(own(0), own(0)), section, wrapped())
    assert "split_dataset_by_node" in finding.fixes[0].paste


@pytest.mark.parametrize(
    ("ranks", "workers"),
    [
        ((own(0), own(1)), ()),
        ((own(0), own(1)), (0, 1) * 4),
        # Synthetic data that is always the same.
        ((("zeros",) * COUNT,) * 2, (0, 1) * 4),
        # One batch is no proof.
        ((("a",), ("a",)), ()),
        # The same first sample, and then no more.
        ((("a", "b", "c"), ("a", "x", "y")), ()),
        # One batch of each worker.
        ((("a", "a"), ("b", "b")), (0, 1)),
    ],
)
def test_quiet_where_the_streams_differ(
    findings: Findings, ranks: Sequence[Sequence[str]], workers: Sequence[int]
) -> None:
    assert findings(CAUSE, seen(*ranks, workers=workers), loading(), wrapped()) == ()


def test_quiet_about_one_model_over_all_ranks(findings: Findings) -> None:
    assert findings(CAUSE, seen(own(0), own(0)), loading(), wrapped("none")) == ()


def test_quiet_about_groups_of_neighbours(findings: Findings) -> None:
    section = seen(own(0), own(0), own(1), own(1))
    assert findings(CAUSE, section, loading(4), wrapped("fsdp2", 4)) == ()


def test_quiet_about_datasets_with_numbers(findings: Findings) -> None:
    section = loading(kind="map", items=1000)
    assert findings(CAUSE, seen(own(0), own(0)), section, wrapped()) == ()
