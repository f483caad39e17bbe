"""How many DataLoader workers a rank needs, and what these need of its host."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil

from ddoctor.analysis.describe import MIB
from ddoctor.analysis.framework_words import FrameworkWords
from ddoctor.analysis.loader_throughput import NOTABLE, Feed
from ddoctor.evidence.frames import Frame
from ddoctor.evidence.loading import CurvePoint, Loader, LoaderCurve
from ddoctor.evidence.steps import HotLine
from ddoctor.evidence.training import RankHost, RankUse
from ddoctor.models import Fix

# A loader delays a run if waits take more than about 5 % of the time (DS-Analyzer, VLDB'21,
# compares the run with and without its loader this way).
TOLERATED = 1.05
LOCK = re.compile(r"\b(?:flock|lockf|FileLock)\b|\.acquire\(|^with \S*lock\b", re.IGNORECASE)
MOSTLY = 0.5
# A worker that decodes is on a CPU for most of its time; a worker that reads mostly waits.
ON_A_CPU = 0.5
# The curve is only a guess beyond the numbers of workers tried; at most this many times them.
BEYOND = 2
# More than any host has CPUs.
MOST_WORKERS = 4096
# torch's own default (torch.utils.data.DataLoader).
PREFETCH = 2


@dataclass(frozen=True, kw_only=True)
class Advice:
    """The fewest workers that keep up with the step, or else those that nearly reach the best."""

    workers: int
    seconds: float
    """Time between two batches with these workers."""
    enough: bool
    measured: bool
    """Whether a run of the loader alone with several numbers of workers shows it."""
    cpus: float | None
    """CPUs that the loaders and ranks would need together; None: CPUs are not the limit."""

    def step(self, feed: Feed) -> float:
        """Seconds of a step with these workers."""
        return max(self.seconds, feed.need) * feed.per_step + feed.in_main + feed.edges

    def helps(self, feed: Feed) -> bool:
        """Whether these workers save a notable share of the step."""
        return self.step(feed) <= (1 - NOTABLE) * feed.step


def advise(
    feed: Feed, feeds: Sequence[Feed], curve: LoaderCurve | None, use: RankUse | None
) -> Advice:
    """How many workers to use: the time for a batch divided by the workers, or a measured curve.

    The rate of the present workers in the run corrects both: there they share the CPUs with the
    training.
    """
    loader = feed.loader
    present = loader.num_workers
    untimed = feed.interval * present if present else feed.wait / feed.per_step
    batch = loader.batch_seconds or untimed
    points = curve.points if curve is not None else ()
    rates = _rates(feed, points)
    slower = max(1.0, feed.interval * _rate(rates, present, batch)) if present else 1.0
    wanted = feed.need * TOLERATED
    floor, cpus = _floor(feed, feeds, use)
    needed = min(slower * batch / wanted, MOST_WORKERS) if wanted else MOST_WORKERS
    tried = range(1, BEYOND * max(ceil(needed), *rates, 1) + 1)
    gives = {n: max(slower / _rate(rates, n, batch), floor) for n in tried}
    best = min(gives.values())
    enough = best <= wanted
    # Where they cannot be enough, the last few percent are not worth their memory.
    limit = wanted if enough else best * (1 + NOTABLE)
    workers = next(n for n in tried if gives[n] <= limit)
    return Advice(
        workers=workers,
        seconds=gives[workers],
        enough=enough,
        measured=bool(rates),
        cpus=cpus * floor / feed.need if floor > wanted else None,
    )


def worker_fix(feed: Feed, advice: Advice, late: Sequence[Feed], words: FrameworkWords) -> Fix:
    """The change of ``num_workers``, which all starved ranks of the host make."""
    loader = feed.loader
    # Its workers would be started again and again: an epoch ended within the few steps seen.
    persistent = bool(loader.epoch_batches) and loader.kind == "map"
    options = {"num_workers": advice.workers} | ({"persistent_workers": True} if persistent else {})
    paste = words.of_loader(loader.name, options)
    settings = [f"loader.num_workers={advice.workers}"]
    if persistent and not loader.persistent_workers:
        settings.append("loader.persistent_workers=true")
    sharing = sum(other.host == feed.host for other in late)
    every = advice.workers * sharing
    who = f"{every} workers on a host" if sharing > 1 else f"{every} workers"
    ahead = every * (loader.prefetch_factor or PREFETCH) * (loader.batch_bytes or 0) / MIB
    memory = every * (loader.worker_memory or 0) / 1024
    cautions = (
        f"{who} take about {memory:.2g} GiB of host memory" if memory else "",
        f"{who} hold up to {ahead:.0f} MiB of batches in /dev/shm" if ahead >= 1 else "",
        f"each worker iterates over all of {loader.dataset}, unless its __iter__ takes a share by "
        "torch.utils.data.get_worker_info()"
        if loader.kind == "iterable"
        else "",
    )
    return Fix.python(
        summary=f"set num_workers to {advice.workers}",
        paste=f"{paste}: now num_workers={loader.num_workers}",
        caution="; ".join(filter(None, cautions)),
        expected_gain=f"{feed.step:.3g} to {advice.step(feed):.3g} s per step"
        + (", measured with the loader alone" if advice.measured else ", by the time for a batch"),
        settings=tuple(settings),
    )


def start_workers_with(context: str) -> Fix:
    """The fix for locks and CUDA contexts that forked workers inherit."""
    return Fix.python(
        summary=f"start the workers with {context}, so that they inherit no locks",
        paste=f'DataLoader(…, multiprocessing_context="{context}", persistent_workers=True)',
        caution=(
            "the dataset must be picklable, workers take seconds to start, and the script needs "
            'if __name__ == "__main__":'
        ),
    )


def awaited_lock(loader: Loader) -> HotLine | None:
    """The line at which its workers wait for each other most of the time; None: they do not."""
    locks = [one for one in loader.lines if waits_for_a_lock(one.frame)]
    asleep = loader.batch_asleep_seconds > (1 - ON_A_CPU) * loader.batch_seconds
    met, every = (sum(one.samples for one in rows) for rows in (locks, loader.lines))
    return locks[0] if asleep and locks and met >= MOSTLY * every else None


def waits_for_a_lock(line: Frame) -> bool:
    """Whether a line waits until another process, or thread, lets a lock go."""
    return LOCK.search(line.text) is not None


def without_waiting(lock: Frame, who: str = "workers") -> Fix:
    """The fix where one process at a time has a lock: more of them would only wait, too."""
    return Fix.python(
        summary="hold the lock only while an item is made for the first time",
        paste=(
            f"# {lock.file}:{lock.line}: several {who} may read at once\n"
            "if not os.path.exists(made):\n"
            "    with lock:\n"
            "        if not os.path.exists(made):\n"
            "            make(made)"
        ),
        caution="what is written in place needs the lock for reading, too: write, then os.replace",
    )


def computed_once(summary: str, what: str, item: str = "dataset[index]", more: str = "") -> Fix:
    """The fix that saves items of a dataset before the run; ``more`` follows in the script."""
    return Fix.python(
        summary=summary,
        paste=(
            f"# once: {what}\n"
            f'torch.save([{item} for index in range(len(dataset))], "items.pt")\n'
            "# in the training script, instead of that dataset\n"
            f'dataset = torch.load("items.pt", mmap=True){more}'
        ),
        caution="random augmentation must stay in __getitem__; the file must fit on a local disk",
    )


def streamed_once(summary: str, dataset: str) -> Fix:
    """The same for a dataset that is a stream."""
    return Fix.python(
        summary=summary,
        paste=(
            f"# once, for each file: what {dataset}.__iter__ computes again in every epoch\n"
            'torch.save(items, f"{file}.pt")\n'
            f"# in {dataset}.__iter__\n"
            'items = torch.load(f"{file}.pt", mmap=True)'
        ),
        caution="random augmentation must stay in __iter__; the files must fit on a local disk",
    )


def _rates(feed: Feed, points: Sequence[CurvePoint]) -> dict[int, float]:
    """Batches per second by the number of workers, of this rank, or else of the slowest one."""
    tried = [
        point
        for point in points
        if point.name == feed.loader.name and point.num_workers and point.seconds_per_batch > 0
    ]
    mine = [point for point in tried if point.rank == feed.rank] or tried
    rates: dict[int, float] = {}
    for point in sorted(mine, key=lambda point: point.num_workers):
        rate = 1 / point.seconds_per_batch
        rates[point.num_workers] = min(rate, rates.get(point.num_workers, rate))
    return rates


def _rate(rates: dict[int, float], workers: int, batch: float) -> float:
    """Batches per second, interpolated between measurements, or else proportional to workers."""
    if not rates:
        return workers / batch
    knots = [(0, 0.0), *rates.items()]
    (low, slow), (high, fast) = next(
        (pair for pair in pairwise(knots) if workers <= pair[1][0]), (knots[-2], knots[-1])
    )
    if workers > high:
        return fast + max(0.0, (fast - slow) / (high - low)) * (workers - high)
    return (slow * (high - workers) + fast * (workers - low)) / (high - low)


def _floor(feed: Feed, feeds: Sequence[Feed], use: RankUse | None) -> tuple[float, float]:
    """The least seconds between two batches that the CPUs allow, and the number of CPUs.

    Both are 0 if the CPUs are not known.
    """
    mine = next((one for one in use.hosts if one.rank == feed.rank), None) if use else None
    if mine is None or use is None:
        return 0.0, 0.0
    local = [one for one in use.hosts if one.host == mine.host]
    affinity = set(mine.affinity)
    same = [one for one in local if affinity.intersection(one.affinity)]
    together = set().union(*(one.affinity for one in same))
    pools: list[tuple[Sequence[RankHost], float]] = [(same, float(len(together)))]
    if mine.quota is not None:
        pools.append((local, mine.quota))
    work = {one.rank: _cpu_work(one) for one in feeds}
    floors = [
        (sum(work.get(one.rank, _cpu_work(feed)) for one in ranks) / cpus / feed.per_step, cpus)
        for ranks, cpus in pools
        if cpus
    ]
    return max(floors, default=(0.0, 0.0))


def _cpu_work(feed: Feed) -> float:
    """CPU seconds per step of one rank and its workers."""
    return feed.main_cpu + feed.loader.batch_cpu_seconds * feed.per_step
