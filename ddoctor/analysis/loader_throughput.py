"""Whether the loader of each rank keeps up with its steps: what it must give, and what it gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, median

from ddoctor.analysis.derived import Derived
from ddoctor.evidence.loading import Loader, Loading
from ddoctor.evidence.steps import RankSteps, Steps
from ddoctor.models import Where

# The published detectors of slow ranks that ask for both went from one false alarm in four to none.
NOTABLE = 0.1
"""The share of the step from which on a slowdown counts."""
JUDGED = 10
"""Steps that it takes to judge at all."""
AMPLE = 0.5
"""Of the time between two batches: workers that take so little of it are not what is waited for."""
FAR_LONGER = 2
"""Where items and collate take about the same, neither alone is the slow part: more workers take
off both."""
STRETCHES = 5
"""Equal parts of the run; what holds in most of them persists."""


@dataclass(frozen=True, kw_only=True)
class Feed:
    """One rank and the loader that it waits for most; times in seconds."""

    rank: int
    host: str
    loader: Loader
    step: float
    """The mean."""
    per_step: float
    """Batches that a step takes."""
    need: float
    """Between two batches, if no rank ever waited for its loader."""
    wait: float
    """Of each step in the loader, typically, without the epochs' edges."""
    least: float
    """So much it is in every stretch but the best one."""
    edges: float
    """Of each step, what the first batch of an epoch takes longer than others, spread over all."""
    restarts: float
    """The part of ``edges`` in which workers were started."""
    in_main: float
    """Of each step, the training process's own work on its batches before the model."""
    main_cpu: float
    """Of each step, the main thread on a CPU, without what it loads itself."""

    @property
    def share(self) -> float:
        """The part of the step that the rank waits for batches, 0 to 1."""
        return self.wait / self.step

    @property
    def interval(self) -> float:
        """Between two batches, as it is within an epoch."""
        return (self.step - self.edges) / self.per_step

    @property
    def ample(self) -> bool:
        """Whether its workers are so fast that something else must be what is waited for: that a
        batch is handed over, that they are given a CPU."""
        seconds, workers = self.loader.batch_seconds, self.loader.num_workers
        return bool(seconds and workers) and seconds <= AMPLE * self.need * workers

    @property
    def mostly_collate(self) -> bool:
        """Whether putting a batch together takes far longer than to fetch its items."""
        return self.loader.collate_seconds > FAR_LONGER * self.loader.fetch_seconds


@dataclass(frozen=True, kw_only=True)
class LoaderThroughput(Derived):
    """How fast the loaders of a recorded run are, rank by rank."""

    feeds: tuple[Feed, ...]
    """Of each rank whose loader was seen; none where too few steps were judged."""
    ranks: int
    """How many ranks were recorded."""

    @classmethod
    def derive(cls, steps: Steps, loading: Loading) -> LoaderThroughput:
        """Compare what each loader gives with what its rank needs."""
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
        """Those that wait for a notable share of the step, the worst first; half as much as the
        worst counts with it."""
        lasting = [feed for feed in self.feeds if feed.least >= NOTABLE * feed.step]
        worst = max((feed.share for feed in lasting), default=0.0)
        if worst < NOTABLE:
            return ()
        late = [feed for feed in self.feeds if feed.share >= worst / 2]
        return tuple(sorted(late, key=lambda feed: feed.share, reverse=True))

    def where(self, late: Sequence[Feed]) -> Where:
        """These ranks and their hosts; nothing where all ranks are like that."""
        if len(late) == self.ranks:
            return Where()
        return Where(
            hosts=tuple(sorted({feed.host for feed in late})),
            ranks=tuple(sorted(feed.rank for feed in late)),
        )


def first_batch(loader: Loader) -> float:
    """Seconds from the beginning of an epoch to its first batch; 0: no epoch began.

    The very first one also pays for what is done once (imports, cold caches), and counts only where
    there is no other.
    """
    parts = (loader.starts, loader.first_waits)
    return sum(median(part[1:] or part) for part in parts if part)


def edge(loader: Loader) -> float:
    """What the first batch of an epoch takes longer than another one."""
    usual = median(loader.wait_seconds) if loader.wait_seconds else 0.0
    return max(0.0, first_batch(loader) - usual)


def restart(loader: Loader) -> float:
    """The part of the edge in which the workers start; workers that persist need the rest as well,
    a batch's time, until their queue holds one."""
    if not loader.num_workers or loader.persistent_workers:
        return 0.0
    if loader.batch_seconds:
        return max(0.0, edge(loader) - loader.batch_seconds)
    return median(loader.starts[1:] or loader.starts or (0.0,))


def of_batches(loader: Loader) -> str:
    """The length of an epoch on this rank, for a sentence; empty: none ended, and the loader has no
    length."""
    length = median(loader.epoch_batches) if loader.epoch_batches else loader.batches
    return "" if length is None else f" of {length:.0f} batches"


def _feed(rank: RankSteps, loader: Loader, need: float) -> Feed:
    count = len(rank.seconds)
    per_step = loader.taken / count
    seconds = rank.by_name.get("loader", (0.0,) * count)
    waits = _without_edges(seconds, loader)
    edges = (sum(seconds) - sum(waits)) / count
    stretches = _stretches(waits, loader)
    loaded = 0.0 if loader.num_workers else loader.batch_cpu_seconds * per_step
    cpu = fmean(rank.cpu) - loaded if rank.cpu else need
    return Feed(
        rank=rank.place.rank,
        host=rank.place.host,
        loader=loader,
        step=fmean(rank.seconds),
        per_step=per_step,
        need=need / per_step,
        wait=median(stretches),
        least=sorted(stretches)[len(stretches) // STRETCHES],
        edges=edges,
        restarts=edges * restart(loader) / edge(loader) if edges else 0.0,
        in_main=loader.collate_in_main * per_step,
        # A thread that waits for a GPU or a peer may spin, and then less in a shorter step.
        main_cpu=min(max(cpu, 0.0), need),
    )


def _without_edges(seconds: Sequence[float], loader: Loader) -> list[float]:
    """The seconds in the loader, where steps that begin an epoch are as any other.

    Which steps these are is not told: they are among the longest, as many as there were epochs.
    """
    waits, extra = list(seconds), edge(loader)
    longest = sorted(range(len(waits)), key=lambda step: -waits[step])
    usual = median(waits)
    for step in longest[: len(loader.first_waits)]:
        if extra and waits[step] >= extra / 2:
            waits[step] = usual
    return waits


def _stretches(waits: Sequence[float], loader: Loader) -> list[float]:
    """The mean of each stretch: workers that are too few bring their batches together, so that only
    every n-th step waits."""
    length = max(len(waits) // STRETCHES, loader.num_workers, 1)
    parts = [waits[at : at + length] for at in range(0, len(waits) - length + 1, length)]
    return [fmean(part) for part in parts or [waits]]


def _without_loader(rank: RankSteps) -> float:
    """Seconds of the rank's own work in the median step, without its loader."""
    loader = rank.by_name.get("loader", (0.0,) * len(rank.seconds))
    return median(own - wait for own, wait in zip(rank.local, loader, strict=True))
