"""The DataLoader starts its workers again at every epoch, and the steps wait for them.

Unless ``persistent_workers`` is set, all workers end with the epoch and new ones are started for
the next: processes are made, the dataset is copied or opened again, with ``spawn`` torch is
imported anew, and only then is the first batch begun. Long epochs hardly notice; an epoch of a few
dozen steps pays for it again and again.

Seen from outside: a pause at regular intervals, with new process numbers after each.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis import endings, live_ranks, live_stragglers
from ddoctor.analysis.live_state import LiveState
from ddoctor.analysis.loader_throughput import (
    NOTABLE,
    LoaderThroughput,
    first_batch,
    of_batches,
    restart,
)
from ddoctor.evidence.training import TrainingRun
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity, Where

EXPLAINS = ("communication-bound-step", "scaling-efficiency-low", "straggler-rank")

# The first epoch pays for what is done once; two after it that cost the same are no accident.
EPOCHS = 3
STARTING = "loader-start"
CAUTION = "what the script changes in the dataset between epochs, its workers then do not see"


def started_again(throughput: LoaderThroughput, run: TrainingRun | None) -> Iterator[Finding]:
    late = [
        feed
        for feed in throughput.feeds
        if feed.restarts >= NOTABLE * feed.step and len(feed.loader.first_waits) >= EPOCHS
    ]
    if not late:
        return
    worst = max(late, key=lambda feed: feed.restarts / feed.step)
    loader, share = worst.loader, worst.restarts / worst.step
    pause = first_batch(loader)
    lines = [f"DataLoader(…, persistent_workers=True)  # {loader.name}"]
    if run is not None and run.framework == "transformers":
        lines.append("# or, where Trainer makes it: dataloader_persistent_workers=True")
    memory = (loader.worker_memory or 0) * loader.num_workers / 1024
    caution = CAUTION
    if memory:
        caution += f"; they keep their {memory:.2g} GiB a rank between epochs"
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.CERTAIN if loader.batch_seconds else Confidence.LIKELY,
        because=(
            f"each epoch{of_batches(loader)} at {loader.name} starts {loader.num_workers} "
            f"workers again: its first batch comes after {pause:.3f} s, {restart(loader):.3f} s of "
            f"that to start them, {share:.0%} of the time in all"
        ),
        evidence=(
            Observation(
                name="starting workers",
                value=round(100 * share),
                unit="% of the step",
                expected=round(100 * NOTABLE),
                source=f"{len(loader.first_waits)} epochs of rank {worst.rank}",
            ),
            Observation(
                name="until the first batch of an epoch",
                value=round(pause, 3),
                unit="s",
                expected=round(pause - restart(loader), 3),
                source="workers that live on",
            ),
        ),
        where=throughput.where(late),
        cost=Cost(value=round(share, 3), unit="share of step"),
        fixes=(
            Fix(
                summary="keep the workers from epoch to epoch",
                paste="\n".join(lines),
                language="python",
                caution=caution,
                expected_gain=f"{worst.step:.3g} to {worst.step - worst.restarts:.3g} s a step",
                settings=("loader.persistent_workers=true",),
            ),
        ),
    )


def in_a_live_run(live: LiveState) -> Iterator[Finding]:
    if not live.moves:
        return
    rows = [rank for rank in live.ranks if rank.seen.visits(STARTING) >= live_ranks.AGAIN]
    rows = [rank for rank in rows if rank.seen.share(STARTING) >= live_stragglers.NOTABLE]
    if not rows:
        return
    first = max(rows, key=lambda rank: rank.seen.share(STARTING))
    share, calls = first.seen.share(STARTING), first.seen.calls(STARTING)
    at = endings.place(calls[-1]) if calls else ""
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        because=(
            f"{live_ranks.named(rows)}: the main thread starts loader workers again and again"
            f"{f' at {at}' if at else ''}, {share:.0%} of the time"
        ),
        evidence=tuple(
            Observation(
                name=f"starting workers, rank {rank.rank}",
                value=round(100 * rank.seen.share(STARTING)),
                unit="% of time",
            )
            for rank in rows
        ),
        where=Where.of(rows, every=live.ranks),
        cost=Cost(value=round(share, 2), unit="share of step"),
        fixes=(
            Fix(
                summary="keep the workers from epoch to epoch",
                paste=f"DataLoader(…, persistent_workers=True)  # {at}".rstrip(" #"),
                language="python",
                caution=CAUTION,
            ),
        ),
    )
