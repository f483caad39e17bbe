"""The collate function or the transfer of a batch is the slow part of loading, not the items.

The collate function pads, tokenises and stacks items; then the DataLoader transfers, pins and
copies the batch. If this takes longer than fetching the items, a faster disk or dataset does not
help. Work of the training loop on a batch, between loader and model, delays every step; workers can
do it meanwhile.

Symptoms: it looks like too few workers, but the samples of a profiler are in the collate function,
in ``pin_memory`` or in ``Tensor.to``.

To fix it, add workers, do less in collate, move work of the loop into the workers, or pin memory.
"""

# Above 150 lines: collate, work in the loop and pageable memory have different evidence and fixes.

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddoctor.analysis import (
    copy_fixes,
    endings,
    live_cost,
    live_data_starvation,
    live_loop,
    live_ranks,
    loop_work,
)
from ddoctor.analysis.batch_copies import BatchCopies
from ddoctor.analysis.describe import MIB
from ddoctor.analysis.framework_words import FrameworkWords
from ddoctor.analysis.live_state import LiveState
from ddoctor.analysis.loader_throughput import NOTABLE, Feed, LoaderThroughput, sampled_at
from ddoctor.analysis.loader_workers import advise, computed_once, worker_fix
from ddoctor.analysis.loop_work import ON_BATCHES, LoopLine, Place
from ddoctor.analysis.script_source import (
    LOADER,
    batches_on_cuda,
    evaluates,
    is_trained_on,
    shown,
    with_keywords,
)
from ddoctor.analysis.step_loop import StepLoop
from ddoctor.analysis.stragglers import enough
from ddoctor.evidence.loading import LoaderCurve, Loading
from ddoctor.evidence.script import Script
from ddoctor.evidence.steps import Lines, Steps
from ddoctor.evidence.trace import Traces
from ddoctor.evidence.training import RankUse
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity, Where

STACKS = "default_collate"
"""The default collate function of torch."""
# The least rank's work on batches, as a part of that of the most: equal work differs less.
UNLIKE = 2
EXPLAINS = (
    "straggler-rank",
    "helpers-take-cpus",
    "communication-bound-step",
    "scaling-efficiency-low",
    "step-loop-overhead",
)


def longer_than_the_items(
    throughput: LoaderThroughput,
    curve: LoaderCurve | None,
    use: RankUse | None,
    words: FrameworkWords,
    lines: Lines | None,
) -> Iterator[Finding]:
    late = throughput.starved
    if not late or not late[0].mostly_collate or late[0].ample:
        return
    worst, loader = late[0], late[0].loader
    advice = advise(worst, throughput.feeds, curve, use)
    workers = (
        [worker_fix(worst, advice, late, words)]
        if advice.workers > loader.num_workers and advice.helps(worst)
        else []
    )
    collate = loader.collate_seconds / loader.collated
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.CERTAIN,
        because=(
            f"the step needs a batch every {worst.need:.3f} s and gets one every "
            f"{worst.interval:.3f} s: of the {loader.batch_seconds:.3f} s per batch at "
            f"{loader.name}, {loader.collate or 'collate'} takes {collate:.3f} s"
        ),
        evidence=(
            Observation(
                name="collate",
                value=round(collate, 4),
                unit="s per batch",
                expected=round(worst.need, 4),
                source="the step without waiting for any loader",
            ),
            Observation(
                name="fetching the items",
                value=round(loader.fetch_seconds / loader.collated, 4),
                unit="s per batch",
            ),
            _share("waiting for batches", worst, worst.wait),
            *sampled_at(worst, lines),
        ),
        where=throughput.where(late),
        cost=Cost(value=round(worst.share, 3), unit="share of step"),
        fixes=(*workers, _less(loader.collate or "collate", loader.name)),
    )


def in_a_live_run(live: LiveState) -> Iterator[Finding]:
    rows = live_data_starvation.hungry(live)
    frame = live_data_starvation.collating(rows)
    if frame is None:
        return
    share = min(map(live_data_starvation.at_the_loader, rows))
    workers = len(rows[0].seen.workers)
    where = endings.place(frame) if frame.of_user else f"in {frame.function} of torch"
    yield Finding(
        severity=live_cost.severity(share),
        confidence=Confidence.LIKELY,
        because=(
            f"{live_ranks.named(rows)}: the main thread is in its DataLoader {share:.0%} of the "
            f"time, and {f'the {workers} workers' if workers else 'it'} mostly "
            f"{'collate' if workers else 'collates'} batches, {where}, instead of reading items"
            + live_data_starvation.turns(live)
        ),
        evidence=(
            Observation(name="at the loader", value=round(100 * share), unit="% of time"),
            Observation(name="workers", value=workers),
        ),
        where=Where.of(rows),
        cost=Cost(value=round(share, 2), unit="share of step"),
        fixes=(_less(frame.function, endings.place(live_data_starvation.taken(rows))),),
    )


def in_the_loop_of_a_live_run(live: LiveState) -> Iterator[Finding]:
    work = live_loop.preparing(live)
    if work is None:
        return
    line = work.lines[0].frame
    who = "all ranks spend" if len(live.ranks) > 1 else "the run spends"
    workers = len(live.ranks[0].seen.workers)
    yield Finding(
        severity=live_cost.severity(work.share),
        confidence=Confidence.LIKELY,
        because=(
            f"{who} {work.share:.0%} of the time on the batch between the loader and the model"
            f"{_mostly(work.lines)}"
        ),
        evidence=live_ranks.shares("work on the batch", work.shares),
        cost=Cost(value=round(work.share, 2), unit="share of step"),
        fixes=(_in_the_workers(workers, endings.place(line)),),
    )


def in_the_training_process(throughput: LoaderThroughput, loop: StepLoop) -> Iterator[Finding]:
    # A frozen teacher may compute there as well.
    of_models = loop.seconds(Place.MODEL)
    late = [one for one in throughput.feeds if one.in_main - of_models >= NOTABLE * one.step]
    if not late:
        yield from _before_the_model(throughput, loop)
        return
    worst = max(late, key=lambda feed: feed.in_main / feed.step)
    loader, seconds = worst.loader, worst.in_main - of_models
    if worst.wait > seconds:
        return
    # What only some ranks do is no matter of collate: straggler-rank reports it.
    if min(feed.in_main for feed in throughput.feeds) < worst.in_main / UNLIKE:
        return
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        because=(
            f"rank {worst.rank} works {seconds:.3f} s of each step on batches between the "
            f"loader of {loader.name} and the model, in a step of {worst.step:.3f} s"
            f"{_mostly(loop.lines(*ON_BATCHES))}"
        ),
        evidence=(_share("work of the training process on batches", worst, seconds),),
        where=throughput.where(late),
        cost=Cost(value=round(seconds / worst.step, 3), unit="share of step"),
        fixes=(_in_the_workers(loader.num_workers, loader.name),),
    )


def _before_the_model(throughput: LoaderThroughput, loop: StepLoop) -> Iterator[Finding]:
    """Work on batches by sampled lines: of a loop without a DataLoader, too."""
    feeds = throughput.feeds
    # Without a DataLoader, what makes the batch is dataloader-bottleneck.
    places = ON_BATCHES if feeds else (Place.PREPARES,)
    seconds, lines = loop.seconds(*places), loop.lines(*places)
    if seconds < NOTABLE * loop.step or any(feed.wait > seconds for feed in feeds) or not lines:
        return
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        because=(
            f"all ranks spend {seconds:.3g} s of a step of {loop.step:.3g} s on the batch before "
            f"the model gets it{_mostly(lines)}"
        ),
        evidence=(
            Observation(
                name="work of the training process on batches",
                value=round(100 * seconds / loop.step),
                unit="% of the step",
                expected=round(100 * NOTABLE),
                source="the rank with the least",
            ),
        ),
        cost=Cost(value=round(seconds / loop.step, 3), unit="share of step"),
        fixes=(
            _in_the_workers(
                max((feed.loader.num_workers for feed in feeds), default=0),
                endings.place(lines[0].frame),
            ),
        ),
    )


def _mostly(lines: Sequence[LoopLine]) -> str:
    return f", {loop_work.words(lines[0])}" if lines else ""


def _in_the_workers(workers: int, place: str) -> Fix:
    number = workers or copy_fixes.WORKERS
    return Fix.python(
        summary="move this work into the workers, and transfer few large tensors",
        paste=(
            "def collate(items):  # runs in the workers: all work on a batch\n"
            "    return torch.utils.data.default_collate(items)\n"
            "\n"
            f"DataLoader(…, num_workers={number}, collate_fn=collate)  # {place}"
        ),
        caution="each tensor of a batch opens a file in /dev/shm: stack small tensors",
    )


def copies_to_the_gpu(copies: BatchCopies) -> Iterator[Finding]:
    pageable = [one for one in copies.ranks if not one.pinned]
    late = pageable or [one for one in copies.ranks if one.copied]
    if not late:
        return
    worst = late[0]
    place, share = worst.steps.place, worst.share
    loader = next((one.name for one in worst.loaders if not one.pin_memory), "")
    line = f"{worst.lines[0].file}:{worst.lines[0].line}" if worst.lines else ""
    who = (
        f"rank {place.rank} copies {worst.copied or 'its batches'} to {place.device} for "
        f"{share:.0%} of each step{f', at {line}' if line else ''}"
    )
    fixes: tuple[Fix, ...]
    if not pageable:
        because = f"{who}; they come from pinned memory, but the computation waits for them"
        fixes = (copy_fixes.meanwhile(line), copy_fixes.fewer_bytes(line))
    elif loader:
        because = f"{who}, and the loader at {loader} does not pin its memory"
        fixes = (copy_fixes.pinned(loader, ("loader.pin_memory=true",)),)
    else:
        because = f"{who}, from pageable memory, so the host waits for each copy"
        fixes = (copy_fixes.by_a_loader(line), copy_fixes.fewer_bytes(line))
    yield Finding(
        severity=Severity.WARNING if pageable else live_cost.severity(share),
        confidence=Confidence.LIKELY,
        because=because,
        evidence=(
            Observation(
                name="copying to the device",
                value=round(100 * share),
                unit="% of the step",
                expected=round(100 * NOTABLE),
                source=f"median of {copies.steps} steps",
            ),
        ),
        where=Where.of([one.steps.place for one in late], every=copies.all_ranks),
        cost=Cost(value=round(share, 3), unit="share of step"),
        fixes=fixes,
    )


def pageable_in_the_source(script: Script, loading: Loading | None) -> Iterator[Finding]:
    """The driver stages a copy from pageable memory, and the call returns after that.

    Source: the CUDA driver's API synchronization behavior, and torch's guide on ``pin_memory``.
    """
    ahead = script.copies_ahead
    # What was measured during the training is better evidence.
    if ahead is None or script.names_pinning is not None or loading is not None:
        return
    # A loader of accelerate has copied its batches before that line.
    if any(one.framework == "accelerate" for one in script.imports):
        return
    for loader in script.of(LOADER):
        trains = is_trained_on(loader, script)
        pins = loader.argument("pin_memory", 7) or "False"
        if not trains or pins != "False" or "**" in loader.keywords or evaluates(loader):
            continue
        # Only memory of the host can be pinned.
        if batches_on_cuda(loader, script) is not None:
            continue
        yield Finding(
            severity=Severity.NOTE,
            confidence=Confidence.POSSIBLE,
            because=f"{shown(ahead)} is to copy while the host goes ahead, but {shown(loader.at)} "
            "does not pin its batches, so the host waits for each copy",
            fixes=(
                Fix.python(
                    summary="pin the memory of batches",
                    paste=with_keywords(loader, pin_memory="True"),
                    caution="pinned memory cannot be swapped out",
                ),
            ),
        )
        return


def pageable_in_a_trace(traces: Traces, steps: Steps) -> Iterator[Finding]:
    """By the copies of the GPU themselves, and its idle time until the next launch."""
    if not enough(steps):
        return
    shares = {one.rank: one.pageable_seconds / sum(steps.seconds) for one in traces.ranks}
    one = min(traces.ranks, key=lambda one: shares[one.rank])
    share = shares[one.rank]
    if share < NOTABLE:
        return
    copies = one.pageable_copies / steps.count
    yield Finding(
        severity=live_cost.severity(share),
        confidence=Confidence.LIKELY,
        because=(
            f"the GPU has nothing else to do for {share:.0%} of the step while it gets "
            f"{copies:.3g} copies per step from pageable memory, "
            f"{one.pageable_bytes / steps.count / MIB:.3g} MiB together; the host waits for each"
        ),
        evidence=tuple(
            Observation(
                name=f"copies from pageable memory, rank {rank}",
                value=round(100 * each),
                unit="% of the step",
                expected=round(100 * NOTABLE),
                source="Memcpy HtoD (Pageable -> Device)",
            )
            for rank, each in shares.items()
        ),
        cost=Cost(value=round(share, 3), unit="share of step"),
        fixes=(copy_fixes.pinned("the loader of the batches"),),
    )


def _share(name: str, feed: Feed, seconds: float) -> Observation:
    return Observation(
        name=f"{name}, rank {feed.rank}",
        value=round(100 * seconds / feed.step),
        unit="% of the step",
        expected=round(100 * NOTABLE),
    )


def _less(collate: str, loader: str) -> Fix:
    """The fix for this collate function of the loader at this line."""
    if collate == STACKS:
        return Fix.python(
            summary=f"give {STACKS} less to stack: few tensors with few bytes",
            paste=(
                "# in __getitem__: one tensor for many numbers, images as uint8\n"
                "return torch.as_tensor(image, dtype=torch.uint8), label\n"
                "# in the training: floats on the device\n"
                "images = images.to(device, non_blocking=True).float() / 255"
            ),
            caution="lists of Python numbers are the slowest: each position becomes a tensor",
        )
    return computed_once(
        f"do less in {collate}: move work to the items, or to a run before the training",
        f"prepare() is what {collate} does to each item (tokenising, decoding)",
        item="prepare(dataset[index])",
        more=f"\nDataLoader(…, collate_fn=torch.utils.data.default_collate)  # {loader}".rstrip(
            " #"
        ),
    )
