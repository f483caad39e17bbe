"""The DataLoader restarts its workers at every epoch, and the training waits for them.

Without ``persistent_workers``, all workers end with the epoch, and the loader starts new ones for
the next epoch. It creates processes, copies or opens the dataset again, and with ``spawn`` imports
torch again, before the first batch begins. Long epochs hardly notice it; an epoch of a few dozen
steps pays for it again and again.

Symptoms: a pause at regular intervals, with new worker process ids after each.

To fix it, set ``persistent_workers=True``.
"""

# Above 150 lines: a recorded run, a live one and the source.

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ddoctor.analysis import endings, live_cost
from ddoctor.analysis.framework_words import FrameworkWords
from ddoctor.analysis.live_data_starvation import (
    at_the_loader,
    restarted_once,
    restarting,
    taken,
)
from ddoctor.analysis.live_ranks import named, shares
from ddoctor.analysis.live_state import LiveState
from ddoctor.analysis.loader_throughput import (
    NOTABLE,
    Feed,
    LoaderThroughput,
    first_batch,
    of_batches,
)
from ddoctor.analysis.script_source import LOADER, evaluates, shown, with_keywords, worker_count
from ddoctor.evidence.loading import Loader, LoaderCurve
from ddoctor.evidence.script import Script
from ddoctor.evidence.source_lines import SourceCall, SourceLine
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity, Where

EXPLAINS = ("communication-bound-step", "scaling-efficiency-low", "straggler-rank")

# The first epoch pays for one-time work; two more with the same cost are no accident. A worker that
# is not forked imports everything each time.
EPOCHS, EPOCHS_WITHOUT_FORK = 3, 2
KEPT = ("loader.persistent_workers=true",)
"""The setting of a control run."""
CAUTION = "the workers then do not see what the script changes in the dataset between epochs"


def started_again(throughput: LoaderThroughput, words: FrameworkWords) -> Iterator[Finding]:
    late = [
        feed
        for feed in throughput.feeds
        if feed.restarts >= NOTABLE * feed.step and _enough(feed.loader)
    ]
    if not late:
        return
    worst = max(late, key=lambda feed: feed.restarts / feed.step)
    loader, share = worst.loader, worst.restarts / worst.step
    pause = first_batch(loader)
    memory = (loader.worker_memory or 0) * loader.num_workers / 1024
    caution = CAUTION
    if memory:
        caution += f"; they keep {memory:.2g} GiB per rank between epochs"
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.CERTAIN if loader.batch_seconds else Confidence.LIKELY,
        because=(
            f"{_each(loader)} starts {loader.num_workers} worker{'s' * (loader.num_workers > 1)} "
            f"again: its first batch takes "
            f"{pause:.3f} s, {worst.restart:.3f} s of it "
            f"to start them, {share:.0%} of the total time"
        ),
        evidence=(
            Observation(
                name="time to start workers",
                value=round(100 * share),
                unit="% of the step",
                expected=round(100 * NOTABLE),
                source=f"{len(loader.first_waits)} epochs of rank {worst.rank}",
            ),
            Observation(
                name="time to the first batch of an epoch",
                value=round(pause, 3),
                unit="s",
                expected=round(pause - worst.restart, 3),
                source="persistent workers",
            ),
        ),
        where=throughput.where(late),
        cost=Cost(value=round(share, 3), unit="share of step"),
        fixes=(
            *_one_iterator(loader),
            _kept(
                words,
                loader.name,
                caution=caution,
                expected_gain=f"{worst.step:.3g} to {worst.step - worst.restarts:.3g} s a step",
                settings=KEPT,
            ),
        ),
    )


def in_later_epochs(
    throughput: LoaderThroughput, curve: LoaderCurve, script: Script, words: FrameworkWords
) -> Iterator[Finding]:
    """A run of a few steps saw one start; the loader alone, begun again, shows that it repeats."""
    found = [each for feed in throughput.feeds for each in _later(feed, curve)]
    share, feed, start = max(found, key=lambda one: one[0], default=(0.0, None, 0.0))
    epochs = any(loop.kind == "epoch" for loop in script.loops)
    if feed is None or not epochs or share < NOTABLE:
        return
    loader = feed.loader
    yield Finding(
        severity=live_cost.severity(share),
        confidence=Confidence.LIKELY,
        because=(
            f"{_each(loader)} will start {loader.num_workers} "
            f"worker{'s' * (loader.num_workers > 1)} again: the first batch took "
            f"{first_batch(loader):.2f} s, and {start:.2f} s of the loader alone, which is "
            f"{share:.0%} of the time of an epoch"
        ),
        evidence=(
            Observation(
                name="time to start workers",
                value=round(100 * share),
                unit="% of an epoch",
                expected=round(100 * NOTABLE),
                source="the loader alone",
            ),
        ),
        cost=Cost(value=round(share, 3), unit="share of step"),
        fixes=(_kept(words, loader.name, settings=KEPT),),
    )


def _kept(
    words: FrameworkWords,
    place: str,
    *,
    caution: str = CAUTION,
    expected_gain: str | None = None,
    settings: tuple[str, ...] = (),
) -> Fix:
    return Fix.python(
        summary="keep the workers alive between epochs (persistent_workers)",
        paste=words.of_loader(place, {"persistent_workers": True}),
        caution=caution,
        expected_gain=expected_gain,
        settings=settings,
    )


def _later(feed: Feed, curve: LoaderCurve) -> Iterator[tuple[float, Feed, float]]:
    """The share of an epoch that starts workers, and the seconds to the first batch alone."""
    loader = feed.loader
    alone = [one for one in curve.points if (one.rank, one.name) == (feed.rank, loader.name)]
    first_of_all = len(loader.first_waits) == 1 and not loader.epoch_batches
    if not alone or not first_of_all or not loader.num_workers or loader.persistent_workers:
        return
    nearest = min(alone, key=lambda one: abs(one.num_workers - loader.num_workers))
    # One-time work is a part of the first start only.
    start = min(nearest.start_seconds, first_batch(loader))
    again = start - max(loader.batch_seconds, nearest.seconds_per_batch * nearest.num_workers)
    if loader.batches and again > 0:
        yield again / (again + loader.batches * feed.interval), feed, nearest.start_seconds


def _enough(loader: Loader) -> bool:
    """Whether enough epochs began; of starts that were timed themselves, the second one is."""
    timed = len(loader.starts) > 1 and loader.starts[1] >= sum(loader.first_waits)
    fewest = EPOCHS if loader.context == "fork" else EPOCHS_WITHOUT_FORK
    return len(loader.first_waits) >= fewest or timed


def _each(loader: Loader) -> str:
    if _is_begun_for_each_batch(loader):
        return f"next(iter(…)) for each batch of {loader.name}"
    return f"each epoch{of_batches(loader)} at {loader.name}"


def _is_begun_for_each_batch(loader: Loader) -> bool:
    return len(loader.first_batches) == len(loader.wait_seconds) > 0


def _one_iterator(loader: Loader) -> Iterator[Fix]:
    if _is_begun_for_each_batch(loader):
        yield Fix.python(
            summary="make the iterator once, and take each batch from it",
            paste=(
                f"batches = iter(loader)  # the loader of {loader.name}, before the loop\n"
                "for step in range(steps):\n"
                "    batch = next(batches, None)\n"
                "    if batch is None:\n"
                "        batches = iter(loader)\n"
                "        batch = next(batches)"
            ),
            caution="next(iter(loader)) starts the workers and shuffles again for each batch",
        )


def in_a_live_run(live: LiveState, words: FrameworkWords) -> Iterator[Finding]:
    if not live.moves:
        return
    starting = {rank: share for rank in live.ranks if (share := restarting(rank)) >= live_cost.TOLD}
    if not starting:
        yield from _seen_once(live, words)
        return
    rows, share = list(starting), max(starting.values())
    at = endings.place(taken(rows))
    yield Finding(
        severity=live_cost.severity(share),
        confidence=Confidence.LIKELY,
        because=(
            f"{named(rows)}: the main thread restarts DataLoader workers repeatedly"
            f"{f' at {at}' if at else ''}, and waits {share:.0%} of the time for that and for "
            "their first batch"
        ),
        evidence=shares("starting workers, and their first batch", starting),
        where=Where.of(rows, every=live.ranks),
        cost=Cost(value=round(share, 2), unit="share of step"),
        fixes=(_kept(words.of(live.framework), at),),
    )


def _seen_once(live: LiveState, words: FrameworkWords) -> Iterator[Finding]:
    """How often an epoch ends is not known."""
    rows = [rank for rank in live.ranks if restarted_once(rank)]
    once = {rank: share for rank in rows if (share := at_the_loader(rank)) >= live_cost.TOLD}
    if once:
        at = endings.place(taken(rows))
        yield Finding(
            severity=Severity.NOTE,
            confidence=Confidence.POSSIBLE,
            because=(
                f"{named(list(once))}: all DataLoader workers were replaced once, and the main "
                f"thread waited {max(once.values()):.0%} of the time for the new ones"
                f"{f' at {at}' if at else ''}: epochs that are short pay for it again and again"
            ),
            evidence=shares("starting workers, and their first batch", once),
            where=Where.of(list(once), every=live.ranks),
            fixes=(_kept(words.of(live.framework), at),),
        )


def in_the_source(script: Script) -> Iterator[Finding]:
    epochs = any(loop.kind == "epoch" for loop in script.loops)
    calls = {one.loader: one.at for one in script.remade_loaders}
    loaders = sorted(script.of(LOADER), key=lambda one: not _again(one, calls))
    for loader in loaders if epochs else ():
        kept = loader.argument("persistent_workers")
        if worker_count(loader) == 0 or "**" in loader.keywords or evaluates(loader):
            continue
        again = _again(loader, calls)
        if again or (kept in (None, "False") and worker_count(loader)):
            how = "is made again in each epoch" if again else "has no persistent_workers"
            if again and loader.at in calls:
                how += f" by {shown(calls[loader.at])}"
            yield Finding(
                severity=Severity.NOTE,
                confidence=Confidence.POSSIBLE,
                because=(
                    f"{shown(loader.at)} {how}, so its workers start again at every epoch; "
                    "long epochs hardly notice it"
                ),
                fixes=(
                    Fix.python(
                        summary="make it once, before the loop over epochs, with workers that stay"
                        if again
                        else "keep the workers alive between epochs (persistent_workers)",
                        paste=("# before the loop over epochs\n" if again else "")
                        + with_keywords(loader, persistent_workers="True"),
                        caution=CAUTION,
                    ),
                ),
            )
            return


def _again(loader: SourceCall, calls: Mapping[SourceLine, SourceLine]) -> bool:
    """Whether each epoch makes it, in the loop itself or by a function."""
    inside = loader.within[loader.within.index("epoch") :] if "epoch" in loader.within else ()
    return loader.at in calls or (bool(inside) and "condition" not in inside)
