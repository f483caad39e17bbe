"""A resumed run loads all batches up to the saved step, and discards them.

To resume inside an epoch, many scripts iterate over the loader from its start and skip the batches
that they trained on before: ``if step < start: continue``, the ``SkipDataLoader`` of accelerate, or
the Trainer on a streamed dataset. Workers read, decode and collate each skipped batch for nothing.
The later the failure, the longer the resume takes, and the GPUs of all ranks are idle meanwhile.

Symptoms: after each restart there is no progress for minutes or hours. The GPUs idle, the workers
are busy, and then the training runs as before.

To fix it, skip indices in the sampler instead of loaded batches, or save and restore the state of
the loader.
"""

# Above 150 lines: a live run and a log, and three ways to resume.

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from ddoctor.analysis import endings, log_events
from ddoctor.analysis.live_data_starvation import LOADING, at_the_loader
from ddoctor.analysis.live_ranks import LiveRankState, named
from ddoctor.analysis.live_state import LiveState
from ddoctor.evidence.log import Log
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity, Where

EXPLAINS = ("dataloader-bottleneck", "collate-bottleneck")

# accelerate 1.15: this generator only discards the first batches. Its other generators do more, so
# for those the caller must be known to train: the Trainer of transformers 5.23.
LONG_SECONDS = 300
"""A start that takes longer than the import of everything and the first compilation."""
SKIPS = "SkipDataLoader.__iter__"
LOADERS, ASKS = "accelerate/data_loader.py", "Trainer.get_batch_samples"


def in_a_live_run(live: LiveState) -> Iterator[Finding]:
    """Finds runs in which batches arrive and nothing else happens.

    At two to ten batches a second (live_ranks.WAKES), a hundred samples would hit steps of 10 ms
    2 to 10 times on each rank.
    """
    loading = [one for one in live.ranks if one.gets_batches]
    # One rank may load for all ranks, and send each its part.
    rest = [one for one in live.ranks if one not in loading and one.doing != "collective"]
    skips = [_in_the_script(one) or _in_a_library(one) for one in live.ranks]
    if rest or not loading or not all(skips) or not live.moves:
        return
    first, skip = loading[0], skips[0]
    share = min(map(at_the_loader, loading))
    at = endings.at(first.line)
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        because=(
            f"{named(loading)}: the main thread takes batch after batch from the workers{at}, and "
            f"no rank ran a forward pass, a backward pass or the optimizer for "
            f"{first.seconds:.0f} s: {skip} skips these batches"
        ),
        evidence=(
            Observation(name="at the loader", value=round(100 * share), unit="% of time"),
            Observation(
                name=f"batches that rank {first.rank} received",
                value=round(first.seen.wakes / first.seconds, 1),
                unit="per second",
                expected=0.2,
                source="wakeups while it waits for one batch: MP_STATUS_CHECK_INTERVAL of torch",
            ),
            Observation(name="time since its start", value=round(first.seen.age_seconds), unit="s"),
        ),
        where=Where.of(loading, every=live.ranks),
        cost=Cost(value=round(share, 2), unit="share of time"),
        fixes=(*_WITHOUT_READING, *_of_the_trainer(skip)),
    )


def in_a_log(log: Log) -> Iterator[Finding]:
    """By the bar of transformers' Trainer."""
    for event in log.of("skipping"):
        done, total = int(event.values["done"]), int(event.values["total"])
        seconds = 0
        for part in event.values["elapsed"].split(":"):
            seconds = 60 * seconds + int(part)
        if seconds >= LONG_SECONDS:
            yield log_events.finding(
                [event],
                f"the Trainer has read {done:,} of {total:,} batches in {seconds / 60:.0f} min, "
                "only to skip them",
                *_WITHOUT_READING,
                *_of_the_trainer(TRAINER),
                severity=Severity.WARNING,
            )
            return


_WITHOUT_READING = (
    Fix.python(
        summary="skip indices in the batch sampler, so that nothing is read",
        paste=(
            "# for the epoch in which the run resumes; "
            "start: batches that were trained on\n"
            "from itertools import islice\n\n"
            "batches = list(islice(loader.batch_sampler, start, None))\n"
            "loader = DataLoader(dataset, batch_sampler=batches, num_workers=…)\n"
            "# accelerate does the same: loader = skip_first_batches(loader, start)"
        ),
        caution=(
            "needs a map-style dataset, and the same seed and epoch in the sampler; a "
            "streamed dataset must skip within itself"
        ),
    ),
    Fix.python(
        summary="or save the state of the loader, and restore it",
        paste=(
            "from torchdata.stateful_dataloader import StatefulDataLoader\n\n"
            "loader = StatefulDataLoader(dataset, …)  # as the DataLoader\n"
            'checkpoint["loader"] = loader.state_dict()\n'
            'loader.load_state_dict(checkpoint["loader"])  # before its first batch'
        ),
        caution=(
            "each rank saves its own state; a streamed dataset needs state_dict and "
            "load_state_dict, or the loader reads it from its start, too"
        ),
    ),
)


def _in_the_script(rank: LiveRankState) -> str:
    """The line with which its loop skips the rest of its body; empty: it was seen after it."""
    met = rank.seen.activities
    only = all(row.name in (*LOADING, "rest") and row.before_skip for row in met)
    seen = sum(row.samples for row in met) == rank.seen.samples
    return f"`{met[0].before_skip}`" if only and seen and met else ""


def _in_a_library(rank: LiveRankState) -> str:
    """The library that skips the batches; empty: its main thread was also seen elsewhere."""
    # Sending the batches to the other ranks is part of the loading.
    only = all(row.name in (*LOADING, "collective", "rest") for row in rank.seen.activities)
    if not only or len({row.calls for row in rank.seen.activities}) > 1:
        return ""
    for frame, inner in pairwise(rank.seen.stack):
        if inner.file.endswith(LOADERS) and inner.function == SKIPS:
            return "accelerate's SkipDataLoader"
        if inner.file.endswith(LOADERS) and frame.function == ASKS:
            return TRAINER
    return ""


TRAINER = "the Trainer of transformers"


def _of_the_trainer(skip: str) -> Iterator[Fix]:
    if skip == TRAINER:
        yield Fix.python(
            summary="or do not skip, and start the epoch again",
            paste="TrainingArguments(…, ignore_data_skip=True)",
            caution="the run trains on the first items of the epoch again",
        )
