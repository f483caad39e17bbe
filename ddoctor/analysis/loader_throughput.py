"""Whether the DataLoader of each rank keeps up with its steps: the batches needed and delivered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, median

from ddoctor.analysis import stretches
from ddoctor.analysis.derived import Derived
from ddoctor.evidence.loading import Loader, Loading
from ddoctor.evidence.steps import HotLine, Lines, RankSteps, Steps
from ddoctor.models import Observation, Where

# Published detectors of slow ranks that require both went from one false alarm in four to none.
NOTABLE = 0.1
"""The share of the step, 0 to 1, from which a slowdown counts."""
JUDGED = 10
"""The least number of steps to judge."""
NO_FASTER = 0.8
"""Share of the time between two batches of the worst rank, to be as slow."""
AMPLE = 0.5
"""Share of the time between two batches: faster workers are not the bottleneck."""
FAR_LONGER = 2
"""Collate is the slow part if it takes this many times as long as the items.

Otherwise neither is, and more workers reduce both.
"""


@dataclass(frozen=True, kw_only=True)
class Feed:
    """One rank and the DataLoader that it waits for most; times in seconds."""

    rank: int
    host: str
    loader: Loader
    step: float
    """The mean step."""
    per_step: float
    """Batches per step."""
    need: float
    """Time between two batches if no rank waited for its loader."""
    wait: float
    """Usual time of a step in the loader, without the starts of epochs."""
    least: float
    """The least wait in all stretches but the best one."""
    edges: float
    """Extra time of the first batches of epochs, as a mean over all steps."""
    restart: float
    """Of the first batch of an epoch, the time that starts workers."""
    restarts: float
    """The part of ``edges`` that starts workers."""
    in_main: float
    """Of each step, the training process's own work on its batches before the model."""
    main_cpu: float
    """Of each step, the main thread on a CPU, without what it loads itself."""

    @property
    def share(self) -> float:
        """The share of the step that the rank waits for batches, 0 to 1."""
        return self.wait / self.step

    @property
    def interval(self) -> float:
        """Time between two batches within an epoch."""
        return (self.step - self.edges) / self.per_step

    @property
    def pace(self) -> float:
        """Time between two batches that its workers make; 0: it has none, or it is not known."""
        workers = self.loader.num_workers
        return self.loader.batch_seconds / workers if workers else 0.0

    @property
    def ample(self) -> bool:
        """Whether its workers are fast enough, so that the wait has another reason.

        Examples: the transfer of a batch to the main process, or workers that wait for a CPU.
        """
        seconds, workers = self.loader.batch_seconds, self.loader.num_workers
        return bool(seconds and workers) and seconds <= AMPLE * self.need * workers

    @property
    def mostly_collate(self) -> bool:
        """Whether collate takes far longer than fetching the items."""
        loader = self.loader
        return bool(loader.collated) and loader.collate_seconds > FAR_LONGER * loader.fetch_seconds


@dataclass(frozen=True, kw_only=True)
class LoaderThroughput(Derived):
    """How fast the DataLoaders of a recorded run are, by rank."""

    feeds: tuple[Feed, ...]
    """One for each rank with a known loader; empty: too few steps to judge."""
    ranks: int
    """The number of recorded ranks."""

    @classmethod
    def derive(cls, steps: Steps, loading: Loading) -> LoaderThroughput:
        """Compare what each loader delivers with what its rank needs."""
        found = []
        if steps.count >= JUDGED:
            longest = max(_without_loader(rank) for rank in steps.ranks)
            transfer = min(rank.total("transfer") / len(rank.seconds) for rank in steps.ranks)
            for rank in steps.ranks:
                mine = [one for one in loading.loaders if one.rank == rank.place.rank and one.taken]
                if mine:
                    loader = max(mine, key=lambda one: (sum(one.wait_seconds), one.taken))
                    found.append(_feed(rank, loader, longest + transfer))
        return cls(feeds=tuple(found), ranks=len(steps.ranks))

    @cached_property
    def starved(self) -> tuple[Feed, ...]:
        """Ranks that wait for a notable share of the step, the worst first.

        Ranks that wait at least half as long as the worst one are included, and those whose workers
        are no faster: these wait for the worst one, and would be next.
        """
        lasting = [feed for feed in self.feeds if feed.least >= NOTABLE * feed.step]
        worst = max(lasting, key=lambda feed: feed.share, default=None)
        if worst is None or worst.share < NOTABLE:
            return ()
        late = [
            feed
            for feed in self.feeds
            if feed.share >= worst.share / 2 or feed.pace >= NO_FASTER * worst.interval
        ]
        return tuple(sorted(late, key=lambda feed: feed.share, reverse=True))

    def where(self, late: Sequence[Feed]) -> Where:
        """These ranks and their hosts; empty if these are all ranks."""
        if len(late) == self.ranks:
            return Where()
        return Where(
            hosts=tuple(sorted({feed.host for feed in late})),
            ranks=tuple(sorted(feed.rank for feed in late)),
        )


def first_batch(loader: Loader) -> float:
    """Seconds from the start of an epoch to its first batch; 0: no epoch began.

    The first epoch also pays for one-time work (imports, cold caches), and counts only if there is
    no other.
    """
    parts = (loader.starts, loader.first_waits)
    return sum(median(part[1:] or part) for part in parts if part)


def edge(loader: Loader) -> float:
    """Seconds that the first batch of an epoch takes longer than other batches."""
    first = set(loader.first_batches)
    others = [one for number, one in enumerate(loader.wait_seconds) if number not in first]
    # Where each batch is the first one of an epoch, none shows what is usual.
    usual = median(others) if others else 0.0
    return max(0.0, first_batch(loader) - usual)


def _restart(loader: Loader, interval: float) -> float:
    """The seconds of the edge that start workers.

    Persistent workers also need the rest, the time for a batch, until their queue holds one. Where
    that is not known, as of spawned workers, they make one in ``interval`` for each of them: in
    more time they would deliver fewer.
    """
    if not loader.num_workers or loader.persistent_workers:
        return 0.0
    started = median(loader.starts[1:] or loader.starts or (0.0,))
    batch = loader.batch_seconds or loader.num_workers * interval
    return max(started if not loader.batch_seconds else 0.0, edge(loader) - batch)


def of_batches(loader: Loader) -> str:
    """The length of an epoch on this rank, for a sentence; empty: not known."""
    length = median(loader.epoch_batches) if loader.epoch_batches else loader.batches
    return "" if length is None else f" of {length:.0f} batches"


def _feed(rank: RankSteps, loader: Loader, need: float) -> Feed:
    count = len(rank.seconds)
    per_step = loader.taken / count
    seconds = rank.by_name.get("loader", (0.0,) * count)
    waits = _without_edges(seconds, loader)
    edges, extra = (sum(seconds) - sum(waits)) / count, edge(loader)
    step = fmean(rank.seconds)
    if not loader.first_batches and loader.epoch_batches and len(loader.first_waits) > 1:
        # An epoch began in a step that is not judged, such as an inspected one.
        missed = extra * per_step / median(loader.epoch_batches)
        step, edges = step + missed, edges + missed
    restart = _restart(loader, (step - edges) / per_step)
    # With too few workers, only every n-th step waits.
    each = stretches.means(waits, least=max(loader.num_workers, 1))
    loaded = 0.0 if loader.num_workers else loader.batch_cpu_seconds * per_step
    cpu = fmean(rank.cpu) - loaded if rank.cpu else need
    return Feed(
        rank=rank.place.rank,
        host=rank.place.host,
        loader=loader,
        step=step,
        per_step=per_step,
        need=need / per_step,
        wait=median(each),
        least=stretches.lasting(each),
        edges=edges,
        restart=restart,
        restarts=edges * restart / extra if extra else 0.0,
        in_main=loader.collate_in_main * per_step,
        # A thread that waits for a GPU or a peer may spin, and then less in a shorter step.
        main_cpu=min(max(cpu, 0.0), need),
    )


def _without_edges(seconds: Sequence[float], loader: Loader) -> list[float]:
    """The seconds in the loader, with usual values for the steps that begin an epoch."""
    begun = Counter(loader.wait_steps[batch] for batch in loader.first_batches)
    others = [one for step, one in enumerate(seconds) if step not in begun]
    waits, extra = list(seconds), edge(loader)
    for step, epochs in begun.items():
        # A rank may have more batches than judged steps.
        if step < len(waits):
            usual = median(others) if others else max(0.0, waits[step] - epochs * extra)
            waits[step] = min(waits[step], usual)
    return waits


def _without_loader(rank: RankSteps) -> float:
    """Seconds of the rank's own work in the median step, without its loader."""
    loader = rank.by_name.get("loader", (0.0,) * len(rank.seconds))
    return median(own - wait for own, wait in zip(rank.local, loader, strict=True))


def sampled_lines(feed: Feed, lines: Lines | None) -> Sequence[HotLine]:
    """The lines of the workers of a loader, or of the main thread in it, most frequent first."""
    if not feed.loader.num_workers and lines is not None:
        return lines.of(feed.rank, "loader")
    return feed.loader.lines


def sampled_at(feed: Feed, lines: Lines | None) -> Iterator[Observation]:
    """The function in which the workers of a loader, or the main thread in it, are most often.

    And its most frequent line. Single lines may be met too often: a thread that samples runs when
    the other one lets go of the interpreter.
    """
    met = sampled_lines(feed, lines)
    functions: Counter[tuple[str, str]] = Counter()
    for line in met:
        functions[line.file, line.function] += line.samples
    if not functions:
        return
    (most, samples), *_ = functions.most_common()
    hot = next(line for line in met if (line.file, line.function) == most)
    who = "of the workers" if feed.loader.num_workers else "in the loader"
    yield Observation(
        name="sampled most often at",
        value=f"{hot.file}:{hot.line} {hot.text}".rstrip(),
        source=f"{samples} of {functions.total()} samples {who} in {hot.function}",
    )
