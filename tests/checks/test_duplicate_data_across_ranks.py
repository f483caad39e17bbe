from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from msgspec.structs import replace

from ddoctor.evidence.frames import Origin
from ddoctor.evidence.loading import DataSeen, FirstBatches, FirstInputs, Loader, Loading
from ddoctor.evidence.training import TrainingRun
from ddoctor.evidence.wrapping import Calls, CollectiveCalls, Wrapper, Wrapping
from ddoctor.models import Confidence, Severity
from tests.conftest import Findings
from tests.training_loaders import loader_with
from tests.training_steps import USUAL, steps

CAUSE = "duplicate-data-across-ranks"


def loader(rank: int, ranks_per_host: int = 8, **more: object) -> Loader:
    plain = loader_with(
        rank=rank,
        host=f"node-{rank // ranks_per_host}",
        sampler="RandomSampler",
        taken=60,
    )
    return msgspec.structs.replace(plain, **more)


def loading(ranks: int = 4, ranks_per_host: int = 8, **more: object) -> Loading:
    return Loading(loaders=tuple(loader(rank, ranks_per_host, **more) for rank in range(ranks)))


def seen(
    *parts: object,
    values: Sequence[object] = (),
    labels: Sequence[object] = (),
    batches: int = 8,
) -> DataSeen:
    """Ranks that were given these parts of the data, by their numbers and maybe by the contents."""
    return DataSeen(
        epochs=tuple(
            FirstBatches(
                rank=rank,
                name="train.py:42",
                epoch=0,
                by=by,  # type: ignore[arg-type]
                batches=tuple(f"{part}-{batch}" for batch in range(batches)),
            )
            for by, given in (("indices", parts), ("values", values), ("labels", labels))
            for rank, part in enumerate(given)
        )
    )


def wrapped(kind: str = "ddp", ranks: int = 4) -> Wrapping:
    return Wrapping(
        wrappers=tuple(
            Wrapper(
                rank=rank,
                kind=kind,  # type: ignore[arg-type]
                name="Net",
                parameters=10,
                parameter_bytes=40,
                trainable_bytes=40,
            )
            for rank in range(ranks)
        )
    )


def test_all_ranks_with_the_same_items(findings: Findings) -> None:
    (finding,) = findings(CAUSE, seen(0, 0, 0, 0), loading(), wrapped())
    assert finding.severity is Severity.NOTE
    assert finding.confidence is Confidence.LIKELY
    assert finding.where.ranks == ()
    assert "gives the same items to all ranks" in finding.because
    assert "no sampler splits its 64000 items" in finding.because
    assert "unless each rank opens a different dataset" in finding.because
    assert "DistributedSampler(dataset, shuffle=True)" in finding.fixes[0].paste
    assert "batch_size=32" in finding.fixes[0].paste


def test_the_same_values_as_well(findings: Findings) -> None:
    (finding,) = findings(CAUSE, seen(0, 0, values=(5, 5)), loading(2), wrapped(ranks=2))
    assert finding.severity is Severity.WARNING
    assert finding.confidence is Confidence.CERTAIN
    assert "unless" not in finding.because


def test_augmentation_leaves_the_labels_alone(findings: Findings) -> None:
    augmented = seen(0, 0, values=(5, 6), labels=(7, 7))
    (finding,) = findings(CAUSE, augmented, loading(2), wrapped(ranks=2))
    assert finding.severity is Severity.WARNING
    assert finding.confidence is Confidence.LIKELY
    assert "as if augmented" in finding.because


def test_the_same_numbers_in_files_of_their_own(findings: Findings) -> None:
    shards = seen(0, 0, values=(5, 6), labels=(7, 8))
    assert findings(CAUSE, shards, loading(2), wrapped(ranks=2)) == ()


def test_the_sampler_was_given_a_wrong_rank(findings: Findings) -> None:
    section = loading(sampler="DistributedSampler", replicas=4)
    (finding,) = findings(CAUSE, seen(0, 0, 0, 0), section, wrapped())
    assert "its DistributedSampler makes 4 shards, and they take the same one" in finding.because


def test_two_ranks_of_four(findings: Findings) -> None:
    (finding,) = findings(CAUSE, seen(0, 1, 1, 2), loading(), wrapped())
    assert finding.where.ranks == (1, 2)
    assert finding.where.hosts == ("node-0",)
    assert "gives the same items to ranks 1-2" in finding.because


def test_the_local_rank_instead_of_the_rank(findings: Findings) -> None:
    section = loading(ranks_per_host=2, sampler="DistributedSampler", replicas=2)
    (finding,) = findings(CAUSE, seen(0, 1, 0, 1), section, wrapped())
    assert "the same items to ranks 0, 2, as well as to ranks 1, 3" in finding.because
    assert finding.where.ranks == ()


def test_accelerate_shares_out_what_it_prepares(findings: Findings) -> None:
    run = TrainingRun(command=("train.py",), seconds=9.0, ranks=(), framework="accelerate")
    (finding,) = findings(CAUSE, seen(0, 0), loading(2), wrapped(ranks=2), run)
    assert "accelerator.prepare(loader)" in finding.fixes[0].paste


def test_everything_on_every_rank_in_its_own_order_is_a_note(findings: Findings) -> None:
    (finding,) = findings(CAUSE, seen(0, 1, 2, 3), loading(), wrapped())
    assert finding.severity is Severity.NOTE
    assert finding.confidence is Confidence.POSSIBLE
    assert "each of 4 ranks iterates over all 64000 items" in finding.because


SHARED = {"sampler": "DistributedSampler", "replicas": 4, "batches": 500}


@pytest.mark.parametrize(
    ("parts", "values", "more", "kind"),
    [
        # Each rank has its part.
        ((0, 1, 2, 3), (), SHARED, "ddp"),
        # The same numbers, but in a dataset of its own on each rank.
        ((0, 0, 0, 0), (4, 5, 6, 7), SHARED, "ddp"),
        # Too small to share out.
        ((0, 0, 0, 0), (), {"items": 100}, "ddp"),
        # Nothing is averaged: one model over all ranks, or a training on each.
        ((0, 0, 0, 0), (), SHARED, "none"),
        # Neighbours in groups of one size: tensor parallel.
        ((0, 0, 1, 1), (), SHARED, "fsdp2"),
        # A stream has no numbers.
        ((0, 0, 0, 0), (), {"kind": "iterable", "items": None}, "ddp"),
        # A framework shares by a sampler of its own.
        ((0, 1, 2, 3), (), SHARED | {"sampler": "SeedableRandomSampler"}, "ddp"),
    ],
)
def test_quiet_where_it_is_meant_or_is_not_so(
    findings: Findings,
    parts: Sequence[int],
    values: Sequence[int],
    more: dict[str, object],
    kind: str,
) -> None:
    section = loading(**more)  # type: ignore[arg-type]
    assert findings(CAUSE, seen(*parts, values=values), section, wrapped(kind)) == ()


def test_quiet_about_datasets_of_different_length(findings: Findings) -> None:
    section = Loading(loaders=tuple(loader(rank, items=64_000 + 32 * rank) for rank in range(2)))
    assert findings(CAUSE, seen(0, 0), section, wrapped(ranks=2)) == ()


def test_quiet_about_a_single_batch(findings: Findings) -> None:
    section = loading(2, sampler="DistributedSampler", replicas=2)
    assert findings(CAUSE, seen(0, 0, batches=1), section, wrapped(ranks=2)) == ()


def test_quiet_about_values_that_never_change(findings: Findings) -> None:
    zeros = tuple(
        FirstBatches(rank=rank, name="train.py:42", epoch=0, by="values", batches=("zeros",) * 8)
        for rank in range(2)
    )
    section = DataSeen(epochs=(*seen(0, 0).epochs, *zeros))
    shared = loading(2, sampler="DistributedSampler", replicas=2)
    assert findings(CAUSE, section, shared, wrapped(ranks=2)) == ()


def test_quiet_under_a_framework_that_splits_the_data(findings: Findings) -> None:
    run = TrainingRun(command=("train.py",), seconds=9.0, ranks=(), framework="accelerate")
    assert findings(CAUSE, seen(0, 1), loading(2), wrapped(ranks=2), run) == ()


def test_the_whole_of_one_dataset_on_every_rank(findings: Findings) -> None:
    (finding,) = findings(CAUSE, seen(0, 1, 2, 3), loading(data="1234abcd"), wrapped())
    assert finding.severity is Severity.WARNING
    assert finding.confidence is Confidence.LIKELY
    assert "an epoch trains on each item 4 times" in finding.because


def test_datasets_with_different_fields_may_be_meant(findings: Findings) -> None:
    section = Loading(loaders=tuple(loader(rank, data=f"data{rank}") for rank in range(2)))
    (finding,) = findings(CAUSE, seen(0, 1), section, wrapped(ranks=2))
    assert finding.severity is Severity.NOTE


def inputs(*parts: object, random: bool = False, batches: int = 8, takes: bool = False) -> DataSeen:
    """What the model got on each rank, by the number of its part of the data."""
    return DataSeen(
        epochs=(),
        inputs=tuple(
            FirstInputs(
                rank=rank,
                batches=tuple(f"{part}-{batch}" for batch in range(batches)),
                random=random,
                origins=(Origin(file="train.py", function="main", line=12, end=12, takes=takes),),
            )
            for rank, part in enumerate(parts)
        ),
    )


NONE = Loading(loaders=())


@pytest.mark.parametrize("random", [False, True])
def test_a_loop_that_draws_the_same_on_all_ranks(findings: Findings, random: bool) -> None:
    section = inputs(0, 0, random=random, takes=random)
    (finding,) = findings(CAUSE, section, NONE, wrapped(ranks=2), steps(USUAL, USUAL))
    assert finding.severity is Severity.WARNING
    assert finding.confidence is Confidence.LIKELY
    assert "at train.py:12 are the same on all ranks, in all 8 compared calls" in finding.because
    assert "manual_seed(1000 + rank)" in finding.fixes[0].paste


def test_quiet_about_a_model_that_each_rank_trains_alone_before(findings: Findings) -> None:
    work = steps(USUAL, USUAL)
    later = replace(
        work,
        ranks=tuple(
            replace(rank, synced_backwards=(0,) * 12 + (1,) * (work.count - 12))
            for rank in work.ranks
        ),
    )
    assert findings(CAUSE, inputs(0, 0), NONE, wrapped(ranks=2), later) == ()


def sent(within: str, bytes_in_a_step: int, in_steps: int = 30) -> CollectiveCalls:
    rows = (
        Calls(
            rank=rank,
            operation="all_reduce",
            place="train.py:30",
            of_user=True,
            within=within,
            in_steps=in_steps,
            calls=in_steps,
            bytes=bytes_in_a_step * in_steps,
            seconds=0.1,
        )
        for rank in range(2)
    )
    return CollectiveCalls(steps=30, calls=tuple(rows))


def test_a_loop_that_averages_its_gradients_itself(findings: Findings) -> None:
    bare = wrapped("none", ranks=2)
    (finding,) = findings(CAUSE, inputs(0, 0), NONE, bare, steps(USUAL, USUAL), sent("rest", 40))
    assert "are the same on all ranks" in finding.because


@pytest.mark.parametrize(
    "calls",
    [
        # Partial results of layers; a loss; now and then.
        sent("forward", 40),
        sent("rest", 4),
        sent("rest", 40, in_steps=3),
    ],
)
def test_quiet_where_gradients_are_not_averaged(findings: Findings, calls: CollectiveCalls) -> None:
    ran = steps(USUAL, USUAL)
    assert findings(CAUSE, inputs(0, 0), NONE, wrapped("none", ranks=2), ran, calls) == ()


def test_two_ranks_of_four_draw_the_same(findings: Findings) -> None:
    (finding,) = findings(CAUSE, inputs(0, 1, 1, 2), NONE, wrapped(), steps(*[USUAL] * 4))
    assert finding.where.ranks == (1, 2)


@pytest.mark.parametrize(
    ("section", "kind", "fed"),
    [
        # Each rank has its part.
        (inputs(0, 1), "ddp", NONE),
        # Random numbers made for each step: a benchmark.
        (inputs(0, 0, random=True), "ddp", NONE),
        # Nothing is averaged; neighbours in groups of one size; too little to compare.
        (inputs(0, 0), "none", NONE),
        (inputs(0, 0, 1, 1), "fsdp2", NONE),
        (inputs(0, 0, batches=1), "ddp", NONE),
        # One rank is not known; the same batch again and again.
        (inputs(0), "ddp", NONE),
        (
            DataSeen(
                epochs=(),
                inputs=tuple(
                    FirstInputs(rank=rank, batches=("a",) * 8, random=False) for rank in (0, 1)
                ),
            ),
            "ddp",
            NONE,
        ),
        # A loader gives the batches, and is judged by its items.
        (inputs(0, 0), "ddp", loading(2, sampler="DistributedSampler", replicas=2)),
    ],
)
def test_quiet_about_inputs(findings: Findings, section: DataSeen, kind: str, fed: Loading) -> None:
    ran = steps(*[USUAL] * max(2, len(section.inputs)))
    assert findings(CAUSE, section, fed, wrapped(kind), ran) == ()


def test_quiet_about_a_look_at_the_validation(findings: Findings) -> None:
    """The model gets the batches of another loader, and none of this one."""
    same = seen(0, 0, 0, 0)
    training = loading(name="train.py:30", replicas=4, reaches=True).loaders
    assert findings(CAUSE, same, loading(), wrapped())
    assert findings(CAUSE, same, loading(reaches=True), wrapped())
    aside = msgspec.structs.replace(loading(), loaders=(*loading().loaders, *training))
    assert findings(CAUSE, same, aside, wrapped()) == ()
