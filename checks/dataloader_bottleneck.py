"""The DataLoader cannot keep up with the training step.

A step can start only when its batch is there. With too few DataLoader workers, or with none (the
training process then loads the items itself), the accelerator idles meanwhile. If this happens on
one rank only, all other ranks wait for that rank in the next collective.

The right number of workers follows from two times: how long one worker takes for a batch, and how
long a step takes without any wait for data. More workers than that cost memory and gain nothing.

Symptoms: GPU utilisation in bursts, often with a period of ``num_workers`` steps, and the main
thread in ``next()`` of the loader.

To fix it, raise ``num_workers`` or ``prefetch_factor``, or make each item cheaper to load.
"""

# Above 150 lines: it judges a slow loader and an empty queue at each epoch, in a recorded run and
# in a live one, and says how many workers would be enough.

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ddoctor.analysis import (
    endings,
    live_cost,
    live_data_starvation,
    loop_work,
    opened_again,
    own_loader,
    printed_times,
    slow_samplers,
)
from ddoctor.analysis.framework_words import FrameworkWords
from ddoctor.analysis.live_ranks import subject
from ddoctor.analysis.live_state import LiveState
from ddoctor.analysis.loader_throughput import (
    NOTABLE,
    Feed,
    LoaderThroughput,
    first_batch,
    of_batches,
    sampled_at,
    sampled_lines,
)
from ddoctor.analysis.loader_workers import (
    ON_A_CPU,
    PREFETCH,
    Advice,
    advise,
    awaited_lock,
    computed_once,
    streamed_once,
    waits_for_a_lock,
    without_waiting,
    worker_fix,
)
from ddoctor.analysis.loop_work import Place
from ddoctor.analysis.script_source import (
    LOADER,
    batches_on_cuda,
    evaluates,
    shown,
    started_workers,
    with_keywords,
)
from ddoctor.analysis.step_loop import StepLoop
from ddoctor.analysis.stragglers import Straggler, Stragglers, enough, few
from ddoctor.evidence.launch import Launch
from ddoctor.evidence.loading import Loader, LoaderCurve, Loading
from ddoctor.evidence.printed_figures import PrintedTimes
from ddoctor.evidence.script import Script
from ddoctor.evidence.steps import Lines, Steps
from ddoctor.evidence.threads import ScriptThreads
from ddoctor.evidence.trace import Traces
from ddoctor.evidence.training import RankUse
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity, Where

EXPLAINS = (
    "straggler-rank",
    "uneven-work-per-rank",
    "rank0-extra-work",
    "helpers-take-cpus",
    "communication-bound-step",
    "scaling-efficiency-low",
)

# Share of a rank's delay: what is less does not explain it.
MOST = 0.5
# The first epoch pays for one-time work; two more with the same cost are no accident.
EPOCHS = 3
TOGETHER = 10
# A total has the start of the workers in it: each imports torch. Of many batches it is a small
# part, or comes again in each epoch.
START_SECONDS, MANY_BATCHES = 10.0, 100


def _on_each_rank(paste: str) -> Fix:
    return Fix.python(
        summary="let each rank load a part of the data itself",
        paste=f"{paste}\n"
        "dataset = datasets.distributed.split_dataset_by_node(dataset, rank, world_size)",
        caution="a dataset of another kind takes its part in __iter__; otherwise accelerate reads "
        "all of it on each rank, and drops the others' samples",
    )


# accelerate/data_loader.py, prepare_data_loader: the default for iterable datasets.
DISPATCHED = {
    "accelerate": _on_each_rank(
        "Accelerator(dataloader_config=DataLoaderConfiguration(dispatch_batches=False))"
    ),
    "Trainer": _on_each_rank(
        'TrainingArguments(..., accelerator_config={"dispatch_batches": False})'
    ),
}


def too_slow_for_the_step(
    throughput: LoaderThroughput,
    curve: LoaderCurve | None,
    use: RankUse | None,
    words: FrameworkWords,
    lines: Lines | None,
) -> Iterator[Finding]:
    late = throughput.starved
    if not late or (late[0].mostly_collate and not late[0].ample):
        return
    worst = late[0]
    if slow_samplers.takes_most(worst):
        yield slow_samplers.finding(worst, throughput.where(late), lines)
        return
    advice = advise(worst, throughput.feeds, curve, use)
    others = [feed for feed in throughput.feeds if feed not in late]
    sure = Confidence.CERTAIN if worst.loader.batch_seconds else Confidence.LIKELY
    # accelerate reads an iterable dataset on its main process, and sends the others their batches.
    loading = {feed.loader.rank for feed in throughput.feeds}
    dispatched = loading == {0} and throughput.ranks > 1 and words.framework in DISPATCHED
    yield Finding(
        severity=Severity.NOTE if worst.ample else Severity.WARNING,
        confidence=Confidence.POSSIBLE if worst.ample else sure,
        because=_because(worst, others, len(late) < throughput.ranks, advice)
        + ("; it loads the batches of all ranks, and sends them" if dispatched else ""),
        evidence=tuple(_rows(worst, advice, lines)),
        where=throughput.where(late),
        cost=Cost(value=round(worst.share, 3), unit="share of step"),
        fixes=(
            *([DISPATCHED[words.framework]] if dispatched else []),
            *opened_again.kept_open(opened_again.among(sampled_lines(worst, lines))),
            *_fixes(worst, late, advice, words),
        ),
    )


def without_a_loader(
    throughput: LoaderThroughput,
    loop: StepLoop,
    late: Stragglers,
    threads: ScriptThreads | None,
) -> Iterator[Finding]:
    """The loop makes or takes its batches itself; by its sampled lines."""
    if throughput.feeds or not loop.ranks:
        return
    rank, seconds = None, loop.seconds(Place.FEEDS)
    cost, who, than = seconds / loop.step, "all ranks spend", ""
    one = next((row for row in late.found if _by_its_batches(row, loop)), None)
    if one is not None and one.cost > cost:
        rank, seconds, cost = one.place.rank, loop.longer(one.place.rank, Place.FEEDS), one.cost
        who, than = f"rank {rank} spends", " longer than the usual rank"
    else:
        one = None
    lines = loop.lines(Place.FEEDS, rank=rank)
    # A straggler is told at less, and this says why it is one.
    if (one is None and cost < NOTABLE) or not lines:
        return
    ranks = [row.place.rank for row in loop.ranks] if rank is None else [rank]
    made = lines[0].inner or lines[0].frame
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        because=(
            f"{who} {1000 * seconds:.3g} ms of a step of {1000 * loop.step:.3g} ms{than} to get "
            f"the batch, without a DataLoader, {loop_work.words(lines[0])}"
            + own_loader.maker(made, threads, ranks)
        ),
        evidence=(
            Observation(
                name="getting the batch",
                value=round(100 * seconds / loop.step),
                unit="% of the step",
                expected=round(100 * NOTABLE),
                source="the rank with the least" if one is None else f"rank {rank}",
            ),
        ),
        where=Where.of([one.place]) if one is not None else Where(),
        cost=Cost(value=round(cost, 3), unit="share of step"),
        fixes=(
            without_waiting(made, "ranks")
            if waits_for_a_lock(made)
            else _a_loader(endings.place(lines[0].frame)),
        ),
    )


def without_workers(
    script: Script, launch: Launch | None, loading: Loading | None
) -> Iterator[Finding]:
    if loading is not None:
        return  # what was measured during the training is better evidence
    trains = any(loop.kind == "training" for loop in script.loops)
    trains = trains or any(one.framework == "Lightning" for one in script.imports)
    for loader in script.of(LOADER) if trains else ():
        # One that puts its items on the GPU cannot do so in workers.
        if batches_on_cuda(loader, script) is not None:
            continue
        if started_workers(loader, launch) == 0 and not evaluates(loader):
            yield Finding(
                severity=Severity.NOTE,
                confidence=Confidence.POSSIBLE,
                because=(
                    f"{shown(loader.at)} has no workers, so the training process loads each batch "
                    "itself while the accelerator waits; enough if the data is in memory"
                ),
                fixes=(
                    Fix.python(
                        summary="load the next batches in worker processes",
                        paste=with_keywords(
                            loader,
                            num_workers="4",
                            pin_memory="True",
                            persistent_workers="True",
                        ),
                        caution="the CPUs of a host are shared by the workers of all its ranks",
                    ),
                ),
            )
            return


def without_workers_in_lerobot(launch: Launch) -> Iterator[Finding]:
    """LeRobot decodes its videos in the DataLoader."""
    told = launch.get("arg.num_workers")
    if told is None or told.number != 0 or "lerobot" not in launch.script:
        return
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        because=f"num_workers is 0 ({told.at}): each rank decodes its videos in the training "
        "process, between two steps",
        evidence=(Observation(name="workers", value=0, source=told.at),),
        fixes=(
            Fix(
                summary="decode in workers: CPUs of the host / its ranks",
                paste="--num_workers=8",
            ),
        ),
    )


def in_a_trainer(launch: Launch, script: Script) -> Iterator[Finding]:
    """A transform that runs for each item, and the Trainer's default of no workers."""
    told = launch.get("arg.dataloader_num_workers")
    trains = any(one.framework == "Trainer" for one in script.imports)
    for one in script.of(".set_transform", ".with_transform"):
        if trains and told is not None and told.number == 0:
            yield Finding(
                severity=Severity.NOTE,
                confidence=Confidence.POSSIBLE,
                because=f"{shown(one.at)} transforms each item when it is read, and "
                f"dataloader_num_workers is 0 ({told.at}): the training process does it, between "
                "two steps",
                evidence=(Observation(name="workers", value=0, source=told.at),),
                fixes=(
                    Fix.python(
                        summary="transform in workers",
                        paste="TrainingArguments(..., dataloader_num_workers=8)",
                    ),
                ),
            )
            return


def _by_its_batches(one: Straggler, loop: StepLoop) -> bool:
    return one.part == "rest" and loop.longer(one.place.rank, Place.FEEDS) >= MOST * one.seconds


def in_a_live_run(
    live: LiveState, words: FrameworkWords, threads: ScriptThreads | None
) -> Iterator[Finding]:
    rows = live_data_starvation.hungry(live)
    if not rows or live_data_starvation.collating(rows) is not None:
        return
    share = live_data_starvation.at_the_loader(rows[0])
    lost = min(map(live_data_starvation.at_the_loader, rows))
    meanwhile = live_data_starvation.turns(live)
    if live.straggler is not None:
        lost, meanwhile = live.straggler.lost, f" {live.straggler.others_wait}"
    at, line = endings.at(live_data_starvation.taken(rows)), live_data_starvation.line(rows)
    made = f", mostly at {endings.place(line)}{endings.quoted(line)}" if line is not None else ""
    workers = len(rows[0].seen.workers)
    own = live_data_starvation.own(rows)
    sure = live_data_starvation.again(rows)
    doubt = "" if sure else "; attach again: it was seen there once, which may be a single batch"
    what = "waits for its DataLoader workers" if workers else "loads batches itself"
    draws = live_data_starvation.drawing(rows)
    if draws:
        what = "draws the indices of batches, which no worker does,"
    if own:
        what = "gets its batches without a DataLoader"
        waits = line or live_data_starvation.taken(rows)
        meanwhile += own_loader.maker(waits, threads, [one.rank for one in rows])
    yield Finding(
        severity=live_cost.severity(lost) if sure else Severity.NOTE,
        confidence=Confidence.LIKELY,
        because=(
            f"{subject(rows)}: the main thread {what}{at} {share:.0%} of the time{made}"
            f"{meanwhile}{doubt}"
        ),
        evidence=(
            Observation(name="workers", value=workers),
            Observation(name="at the loader", value=round(100 * share), unit="% of time"),
        ),
        where=Where.of(rows),
        cost=Cost(value=round(lost, 2), unit="share of step"),
        fixes=(
            _a_loader(endings.place(live_data_starvation.taken(rows)))
            if own
            else slow_samplers.draw_many(lost)
            if draws
            else Fix.python(
                summary="raise num_workers; ddoctor run measures how many workers are enough",
                paste=words.of(live.framework).of_loader(
                    endings.place(live_data_starvation.taken(rows)),
                    {"num_workers": max(2, 2 * workers), "persistent_workers": True},
                ),
                caution="the workers of all ranks of a host together need a core each",
            ),
        ),
    )


def in_a_trace(traces: Traces, steps: Steps) -> Iterator[Finding]:
    """By the time of the main thread in it: a trace has no settings of the loader."""
    if not enough(steps):
        return
    shares = {rank.place.rank: _lasting(rank.spent("loader"), steps) for rank in steps.ranks}
    most = max(shares.values())
    if most < (live_cost.SURE if few(steps) else NOTABLE):
        return
    late = [rank.place for rank in steps.ranks if shares[rank.place.rank] >= most / 2]
    worst = max(late, key=lambda place: shares[place.rank])
    workers = next((one.workers for one in traces.ranks if one.rank == worst.rank), None)
    what = "waits for its DataLoader workers" if workers else "loads batches itself"
    yield Finding(
        severity=live_cost.severity(most),
        confidence=Confidence.LIKELY,
        because=(
            f"{endings.ranks((one.rank for one in late), every=steps.ranks)}: the main thread "
            f"{what} for {most:.0%} of a step of {1000 * steps.step:.3g} ms on rank {worst.rank}"
        ),
        evidence=tuple(
            Observation(
                name=f"in the loader, rank {one.rank}",
                value=round(100 * shares[one.rank]),
                unit="% of the step",
                expected=round(100 * NOTABLE),
                source=f"{steps.count} steps without the longest",
            )
            for one in late[:TOGETHER]
        ),
        where=Where.of(late, every=steps.ranks),
        cost=Cost(value=round(most, 3), unit="share of step"),
        fixes=(
            Fix.python(
                summary="raise num_workers; ddoctor run measures how many workers are enough"
                if workers
                else "load batches in workers; ddoctor run measures how many are enough",
                paste="DataLoader(…, num_workers=4, persistent_workers=True)  # or twice as many",
                caution="the workers of all ranks of a host together need a core each",
            ),
        ),
    )


def in_printed_times(times: PrintedTimes) -> Iterator[Finding]:
    """By the table of a profiler, or the timers in the log."""
    table = printed_times.largest(times, "loader", live_cost.SURE, printed_times.BATCHES)
    if table is None or table.loader is None:
        return
    share = table.loader / table.whole
    may_be_once = (
        table.in_all
        and table.count < MANY_BATCHES
        and table.loader - START_SECONDS < live_cost.SURE * table.whole
    )
    doubt = ", which may be the start of the workers; train longer to see" if may_be_once else ""
    yield Finding(
        severity=Severity.NOTE if may_be_once else Severity.WARNING,
        confidence=Confidence.POSSIBLE if may_be_once else Confidence.LIKELY,
        because=f"{printed_times.whence(table)}: the training waits for its batches for "
        f"{printed_times.part(table, table.loader)}{doubt}",
        evidence=(printed_times.row(table, "waiting for batches", share, live_cost.SURE),),
        where=Where(ranks=table.ranks),
        cost=Cost(value=round(share, 3), unit="share of step"),
        fixes=(
            Fix.python(
                summary="raise num_workers; ddoctor run measures how many workers are enough",
                paste="DataLoader(…, num_workers=8, persistent_workers=True)  # or twice as many",
                caution="the workers of all ranks of a host together need a core each",
            ),
        ),
    )


def _lasting(seconds: Sequence[float], steps: Steps) -> float:
    """Share of the step, without the longest of them: workers start, and an epoch begins, once."""
    return (sum(seconds) - max(seconds)) / (len(seconds) - 1) / steps.step


def _a_loader(place: str) -> Fix:
    return Fix.python(
        summary="make the batches in the workers of a DataLoader, while the step computes",
        paste=(
            "class Batches(torch.utils.data.IterableDataset):\n"
            "    def __iter__(self):\n"
            f"        yield from ...  # the batches of {place}\n"
            "\n"
            "loader = DataLoader(Batches(), batch_size=None, num_workers=2)"
        ),
        caution="each worker makes all of them, unless it takes a share by get_worker_info()",
    )


def empty_at_each_epoch(throughput: LoaderThroughput) -> Iterator[Finding]:
    """The workers are persistent, and yet each epoch begins with an empty queue."""
    feed = max(
        throughput.feeds, key=lambda feed: (feed.edges - feed.restarts) / feed.step, default=None
    )
    if feed is None or len(feed.loader.first_waits) < EPOCHS:
        return
    loader, filling = feed.loader, feed.edges - feed.restarts
    if filling < NOTABLE * feed.step or max(feed.restarts, feed.wait) >= NOTABLE * feed.step:
        return
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        because=(
            f"each epoch{of_batches(loader)} at {loader.name} begins with an "
            f"empty prefetch queue: its first batch takes {first_batch(loader):.3f} s, and "
            f"a step takes {feed.step:.3f} s"
        ),
        evidence=(
            Observation(
                name="refilling the prefetch queue",
                value=round(100 * filling / feed.step),
                unit="% of the step",
                expected=round(100 * NOTABLE),
                source=f"{len(loader.first_waits)} epochs of rank {feed.rank}",
            ),
        ),
        cost=Cost(value=round(filling / feed.step, 3), unit="share of step"),
        fixes=(
            Fix.python(
                summary="join ten epochs into one, so that the workers prefetch across the borders",
                paste=(
                    f"dataset = torch.utils.data.ConcatDataset([dataset] * {TOGETHER})"
                    f"  # for {loader.name}, and a tenth of the epochs"
                )
                if loader.kind == "map"
                else f"# in {loader.dataset}.__iter__, around what is there\nwhile True:\n    ...",
                caution="code at the end of an epoch then runs a tenth as often",
            ),
        ),
    )


def _because(worst: Feed, others: Sequence[Feed], some: bool, advice: Advice) -> str:
    loader = worst.loader
    who = f"rank {worst.rank}" if some else "the step"
    workers = f"{loader.num_workers} worker{'s' * (loader.num_workers != 1)}"
    made = f"the loader at {loader.name} has {workers}"
    if loader.batch_seconds:
        maker = f"each of {workers}" if loader.num_workers > 1 else "its worker"
        if not loader.num_workers:
            maker = "the training process itself (no worker)"
        collate = loader.collate_seconds / loader.collated
        together = (
            f" and {collate:.3f} s of collate" if collate >= NOTABLE * loader.batch_seconds else ""
        )
        made = (
            f"at {loader.name} {maker} takes {loader.batch_seconds:.3f} s per batch, "
            f"{loader.fetched / loader.collated:.3g} items of {1000 * loader.item_seconds:.3g} ms "
            f"each{together}, on a CPU for {loader.batch_cpu_seconds / loader.batch_seconds:.0%} "
            f"of it{_queued(loader)}"
        )
    compared = ""
    if others:
        compared = (
            f"; the other ranks wait {max(feed.wait for feed in others):.3f} s per step for "
            f"theirs, this one {worst.wait:.3f} s"
        )
    if (lock := awaited_lock(loader)) is not None:
        end = f"; the workers wait for each other at {endings.place(lock.frame)}"
        end += endings.quoted(lock.frame)
    elif worst.ample:
        end = (
            "; that is fast enough, so a busy CPU or the transfer to the main process takes the "
            "time"
        )
    elif advice.enough:
        end = ""
    elif advice.cpus is not None:
        end = f"; the loaders would need {advice.cpus:.3g} CPUs, more than these ranks have"
    else:
        end = f"; no number of workers makes one faster than every {advice.seconds:.3f} s"
    return (
        f"{who} needs a batch every {worst.need:.3f} s and gets one every {worst.interval:.3f} s: "
        f"{made}{compared}{end}"
    )


def _queued(loader: Loader) -> str:
    """How long it waits for a CPU, to follow a sentence; empty: hardly."""
    share = loader.queued_seconds / loader.collated / loader.batch_seconds
    return f" and waiting for a CPU for {share:.0%}" if share >= live_cost.TOLD else ""


def _rows(worst: Feed, advice: Advice, lines: Lines | None) -> Iterator[Observation]:
    loader = worst.loader
    yield Observation(
        name=f"waiting for batches, rank {worst.rank}",
        value=round(100 * worst.share),
        unit="% of the step",
        expected=round(100 * NOTABLE),
        source="median of five parts of the run",
    )
    between = "time between two batches"
    workers = f"{advice.workers} worker{'s' * (advice.workers != 1)}"
    by = "measured with the loader alone"
    if not advice.measured:
        by = "time for a batch divided by the workers"
    for name, seconds, source in (
        (between, worst.interval, "the step without waiting for any loader"),
        (f"{between} with {workers}", advice.seconds, by),
    ):
        yield Observation(
            name=name,
            value=round(seconds, 4),
            unit="s",
            expected=round(worst.need, 4),
            source=source,
        )
    if loader.batch_seconds:
        yield Observation(
            name="time for a batch", value=round(loader.batch_seconds, 4), unit="s of a worker"
        )
    yield from sampled_at(worst, lines)


def _fixes(
    worst: Feed, late: Sequence[Feed], advice: Advice, words: FrameworkWords
) -> Iterator[Fix]:
    loader = worst.loader
    if (lock := awaited_lock(loader)) is not None:
        yield without_waiting(lock.frame)
        return
    helps = advice.helps(worst)
    if advice.workers > loader.num_workers and not worst.ample and (helps or advice.enough):
        fix = worker_fix(worst, advice, late, words)
        if not helps:
            # Another rank lags as much: to fix one of the two changes nothing yet.
            both = "the step gets shorter only after the other cause that delays it is fixed, too"
            fix = replace(fix, caution="; ".join(filter(None, (both, fix.caution))), settings=())
        yield fix
    if loader.num_workers and loader.batch_seconds / loader.num_workers <= worst.need:
        ahead = 4 * (loader.prefetch_factor or PREFETCH)
        yield Fix.python(
            summary="raise prefetch_factor: on average the workers are fast enough; items differ",
            paste=words.of_loader(loader.name, {"prefetch_factor": ahead}),
            caution="holds more batches in /dev/shm",
            settings=(f"loader.prefetch_factor={ahead}",),
        )
    if advice.enough or worst.ample:
        return
    asleep = loader.batch_asleep_seconds > (1 - ON_A_CPU) * loader.batch_seconds
    if advice.cpus is None and asleep:
        yield Fix(
            summary="read from a faster disk: more workers alone are not enough",
            paste="rsync -a FOLDER_OF_THE_DATA/ /var/tmp/data/  # on each host, before the run",
            caution="point the dataset there; watch the disk meanwhile: iostat -x 5",
        )
    else:
        summary = "compute the items once before the run: more workers alone are not enough"
        yield (
            streamed_once(summary, loader.dataset)
            if loader.kind == "iterable"
            else computed_once(
                summary, f"what {loader.dataset}.__getitem__ computes again in every epoch"
            )
        )
