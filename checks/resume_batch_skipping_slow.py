"""A resumed run loads all batches up to the saved step, and throws them away.

The usual way to go on in the middle of an epoch is to go through the loader from its beginning and
to pass over what was trained on before: ``if step < start: continue``, the ``SkipDataLoader`` of
accelerate, the Trainer on a streamed dataset. Each of these batches is read, decoded and put
together for nothing, so the later a run fails, the longer it takes to go on; the GPUs of all ranks
are paid for meanwhile. A sampler that begins later, or a loader that keeps its own state, takes no
time for it.

Seen from outside: after each restart no progress for minutes or hours, the GPUs idle, the workers
at work, and then all is as it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from ddoctor.analysis import endings
from ddoctor.analysis.live_data_starvation import LOADING, at_the_loader
from ddoctor.analysis.live_ranks import LiveRankState, named
from ddoctor.analysis.live_state import LiveState
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity, Where

EXPLAINS = ("dataloader-bottleneck", "collate-bottleneck")

# accelerate 1.15: this generator does nothing but to throw away the first batches. Its others do
# more, so of them it must be known that whoever asks trains: the Trainer of transformers 5.23.
SKIPS = "SkipDataLoader.__iter__"
LOADERS, ASKS = "accelerate/data_loader.py", "Trainer.get_batch_samples"


def in_a_live_run(live: LiveState) -> Iterator[Finding]:
    """Where batches pass, and nothing else: at two to ten of them a second (live_ranks.WAKES),
    steps of 10 ms would be met 2 to 10 times in a hundred samples, on each rank."""
    loading = [one for one in live.ranks if one.gets_batches]
    # One rank may load for all, and send them their parts.
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
            f"no rank was met in a forward pass, a backward pass or the optimizer for "
            f"{first.seconds:.0f} s: {skip} passes over them"
        ),
        evidence=(
            Observation(name="at the loader", value=round(100 * share), unit="% of time"),
            Observation(
                name=f"rank {first.rank} woke up for a batch",
                value=round(first.seen.wakes / first.seconds, 1),
                unit="times a second",
                expected=0.2,
                source="while one batch is waited for: MP_STATUS_CHECK_INTERVAL of torch",
            ),
            Observation(name="since it was started", value=round(first.seen.age_seconds), unit="s"),
        ),
        where=Where.of(loading, every=live.ranks),
        cost=Cost(value=round(share, 2), unit="share of time"),
        fixes=(_ahead_of_the_loader(), _stateful(), *_of_the_trainer(skip)),
    )


def _in_the_script(rank: LiveRankState) -> str:
    """By what its loop passes over what is left of its body, if it was met nowhere behind that."""
    met = rank.seen.activities
    only = all(row.name in (*LOADING, "rest") and row.before_skip for row in met)
    seen = sum(row.samples for row in met) == rank.seen.samples
    return f"`{met[0].before_skip}`" if only and seen and met else ""


def _in_a_library(rank: LiveRankState) -> str:
    """Who passes over the batches, if its main thread was met nowhere but there."""
    # To send the batches to the other ranks is a part of the loading.
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


def _ahead_of_the_loader() -> Fix:
    return Fix(
        summary="pass over the numbers of the items, of which nothing is read",
        paste=(
            "# for the epoch in which the run goes on; start: batches that were trained on\n"
            "from itertools import islice\n\n"
            "batches = list(islice(loader.batch_sampler, start, None))\n"
            "loader = DataLoader(dataset, batch_sampler=batches, num_workers=…)\n"
            "# accelerate does the same: loader = skip_first_batches(loader, start)"
        ),
        language="python",
        caution=(
            "of a map-style dataset, with the sampler's seed and epoch as they were; a streamed "
            "one has to begin later by itself"
        ),
    )


def _stateful() -> Fix:
    return Fix(
        summary="or save where the loader was, and begin there",
        paste=(
            "from torchdata.stateful_dataloader import StatefulDataLoader\n\n"
            "loader = StatefulDataLoader(dataset, …)  # as the DataLoader\n"
            'checkpoint["loader"] = loader.state_dict()\n'
            'loader.load_state_dict(checkpoint["loader"])  # before its first batch'
        ),
        language="python",
        caution=(
            "each rank saves its own; a streamed dataset needs state_dict and load_state_dict, or "
            "it is read from its beginning here, too"
        ),
    )


def _of_the_trainer(skip: str) -> Iterator[Fix]:
    if skip == TRAINER:
        yield Fix(
            summary="or train on what comes first once more",
            paste="TrainingArguments(…, ignore_data_skip=True)",
            language="python",
            caution="the epoch begins anew: items that were trained on come again, others later",
        )
