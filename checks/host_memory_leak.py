"""The host memory of a rank, or of its DataLoader workers, grows with every step.

Memory that grows with each step ends only when host memory is full. The kernel then kills a
process, often another one, and every rank waits for it. Common reasons are lists of logged values
or predictions, caches without a limit, tensors kept with their graph, and datasets with millions of
Python objects (each worker copies those it touches).

Symptoms: the resident size of the process in ``top`` rises and never falls, and after some hours a
worker is "killed by signal: Killed".

To fix it, keep numbers instead of tensors, limit caches, and store datasets as arrays.
"""

# Above 150 lines: recorded and live growth, and the doubt whether it is a cache that will end.

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal

from ddoctor.analysis import endings
from ddoctor.analysis.live_state import LiveState
from ddoctor.analysis.trend import trend
from ddoctor.evidence.host import Memory
from ddoctor.evidence.live import LiveLook, LiveRank
from ddoctor.evidence.loading import Loader, Loading
from ddoctor.evidence.steps import Growth, MemoryOverTime
from ddoctor.evidence.training import RankUse
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity, Where

EXPLAINS = ("host-ram-oom",)

# MiB; 100,000 steps of it make 10 GiB.
PER_STEP = 0.1
# MiB. Measured with torch 2.13 on a CPU: within 80 steps the resident size of healthy loops with
# workers varies by up to 18 MiB, and one in a hundred drifts by 21.
GROWTH = 32.0
# A heap of glibc's malloc for one thread (HEAP_MAX_SIZE): less may be due to the allocator.
SURE_GROWTH = 64.0
# The growth must be this many times the variation.
OVER_SWING = 5.0
# Slurm partitions commonly end a job after some days; memory for a week is not urgent.
A_WEEK = 7 * 24.0
# Samples of some seconds say nothing about much later.
AN_HOUR = 1.0
# Activities of a training step: a rank that only loads or evaluates may keep memory on purpose.
TRAINING = ("backward", "backward-or-wait", "optimizer")
# By whether it may be a cache of the dataset.
CONFIDENCE = {
    "no": Confidence.CERTAIN,
    "maybe": Confidence.LIKELY,
    "fits": Confidence.POSSIBLE,
}

MIB_PER_GIB = 1024


@dataclass(frozen=True, kw_only=True)
class Leak:
    """Memory that grows on one rank."""

    growth: Growth
    workers: bool
    start: float
    end: float
    per_step: float
    """MiB."""
    sure: bool

    @property
    def per_hour(self) -> float:
        """MiB."""
        times, steps = self.growth.times, self.growth.steps
        return self.per_step * (steps[-1] - steps[0]) / (times[-1] - times[0]) * 3600


def growing(
    memory: tuple[MemoryOverTime, ...],
    hosts: tuple[Memory, ...] | None,
    loading: tuple[Loading, ...] | None,
    use: tuple[RankUse, ...] | None,
) -> Iterator[Finding]:
    ranks = [rank for one in memory for rank in one.ranks]
    free = {section.host: _free(section, ranks) for section in hosts or ()}
    loaders = [loader for section in loading for loader in section.loaders] if loading else None
    collected = {one.rank: one.gc_enabled for section in use or () for one in section.hosts}
    every = [leak for rank in ranks for leak in _leaks(rank)]
    for workers in (False, True):
        leaks = [leak for leak in every if leak.workers is workers]
        if leaks:
            without_gc = not any(collected.get(leak.growth.rank, True) for leak in leaks)
            yield _finding(leaks, _full(every, free), _cache(leaks, loaders, free), without_gc)


def in_a_live_run(live: LiveState, hosts: tuple[Memory, ...] | None) -> Iterator[Finding]:
    """Memory grows so fast that it is full before the next attach."""
    if not live.moves:
        return
    free = {section.host: _free(section) for section in hosts or ()}
    for look in live.looks:
        rows = [(rank, workers) for rank in look.ranks for workers in (False, True)]
        rates = {row: _per_hour(*row, look.seconds) for row in rows}
        growing = {row: rate for row, rate in rates.items() if rate is not None}
        if growing and free.get(look.host, inf) <= AN_HOUR * sum(growing.values()):
            yield _live(look, growing, free[look.host])


def _per_hour(rank: LiveRank, workers: bool, seconds: float) -> float | None:
    """MiB per hour of growth; None: it does not clearly grow, or this rank does not train."""
    amounts = rank.workers_held if workers else rank.held
    found = trend(range(len(amounts)), amounts)
    if found is None or not found.steady or not any(map(rank.share, TRAINING)):
        return None
    if found.growth < max(SURE_GROWTH, OVER_SWING * found.swing):
        return None
    return found.growth / seconds * 3600


def _live(look: LiveLook, growing: Mapping[tuple[LiveRank, bool], float], free: float) -> Finding:
    rank, workers = max(growing, key=lambda row: growing[row])
    amounts = rank.workers_held if workers else rank.held
    hours = free / sum(growing.values())
    return Finding(
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        because=(
            f"{_what(workers)} of rank {rank.rank} grew from {amounts[0]:.0f} to "
            f"{amounts[-1]:.0f} MiB in {look.seconds:.0f} s, without a pause"
            + (f" (the fastest of {len(growing)})" if len(growing) > 1 else "")
            + f"; at this rate {look.host} is full in {_span(hours)}; a cache of the dataset looks "
            "the same until its first epoch ends"
        ),
        evidence=tuple(
            Observation(
                name=f"growth of {_what(theirs)} of rank {one.rank}",
                value=round(rate / 3600, 2),
                unit="MiB/s",
                source="linear fit of its private memory",
            )
            for (one, theirs), rate in growing.items()
        ),
        where=Where(hosts=(look.host,), ranks=tuple(sorted({one.rank for one, _ in growing}))),
        cost=Cost(value=round(sum(growing.values()) / MIB_PER_GIB, 2), unit="GiB/hour"),
        fixes=tuple(_fixes(workers, without_gc=False)),
    )


def _leaks(rank: Growth) -> Iterator[Leak]:
    for workers, amounts in ((False, rank.resident), (True, rank.workers)):
        if len(amounts) != len(rank.steps):
            continue
        found = trend(rank.steps, amounts)
        if (
            found is not None
            and found.steady
            and found.per_step >= PER_STEP
            and found.growth >= max(GROWTH, OVER_SWING * found.swing)
        ):
            yield Leak(
                growth=rank,
                workers=workers,
                start=amounts[0],
                end=amounts[-1],
                per_step=found.per_step,
                sure=found.growth >= SURE_GROWTH,
            )


def _free(memory: Memory, ranks: Sequence[Growth] = ()) -> float:
    """MiB that processes may still take.

    ddoctor reads the memory of a host after the recorded ``ranks`` end, so their last memory counts
    as taken.
    """
    free = memory.available
    if memory.limit is not None and memory.used_in_limit is not None:
        free = min(free, memory.limit - memory.used_in_limit)
    series = [one for rank in ranks if rank.host == memory.host for one in _series(rank)]
    return max(free / 2**20 - sum(amounts[-1] for amounts in series), 0.0)


def _series(rank: Growth) -> list[tuple[float, ...]]:
    """MiB over time of the process and of its workers, as far as recorded."""
    return [amounts for amounts in (rank.resident, rank.workers) if amounts]


def _full(leaks: Sequence[Leak], free: Mapping[str, float]) -> tuple[float, str] | None:
    """The hours until the first host is full, and its name, with all growth on that host."""
    rates: dict[str, float] = {}
    for leak in leaks:
        host = leak.growth.host
        rates[host] = rates.get(host, 0.0) + leak.per_hour
    return min(
        ((free[host] / rate, host) for host, rate in rates.items() if host in free), default=None
    )


def _cache(
    leaks: Sequence[Leak], loaders: Sequence[Loader] | None, free: Mapping[str, float]
) -> Literal["no", "maybe", "fits"]:
    """Whether it may be a cache of the dataset in its first epoch.

    ``fits``: half of the free memory of each host would hold it at the end of that epoch.
    """
    sizes: dict[str, float] = {}
    for leak in leaks:
        here = [
            one
            for one in loaders or ()
            if one.rank == leak.growth.rank and (one.num_workers > 0) is leak.workers
        ]
        if loaders is not None and (not here or any(one.epoch_batches for one in here)):
            return "no"
        batches = max((one.batches or inf for one in here), default=inf)
        host = leak.growth.host
        sizes[host] = sizes.get(host, 0.0) + leak.per_step * batches
    return "fits" if all(2 * sizes[host] <= free.get(host, 0.0) for host in sizes) else "maybe"


def _finding(
    leaks: Sequence[Leak],
    full: tuple[float, str] | None,
    cache: Literal["no", "maybe", "fits"],
    without_gc: bool,
) -> Finding:
    worst = max(leaks, key=lambda leak: leak.per_step)
    ranks = tuple(sorted(leak.growth.rank for leak in leaks))
    what = _what(worst.workers)
    whose = endings.ranks(ranks)
    growth = worst.growth
    because = (
        f"{what} of {whose} grew by {worst.per_step:.2g} MiB per step"
        + (f" (rank {growth.rank}, the fastest)" if len(ranks) > 1 else "")
        + f", from {worst.start:.0f} to {worst.end:.0f} MiB in "
        f"{growth.steps[-1] - growth.steps[0]} steps, as fast at the end as at the start"
    )
    if full is not None:
        because += f"; at this rate {full[1]} is full in {_span(full[0])}"
    if without_gc:
        because += "; Python's garbage collection is off"
    if cache != "no":
        because += "; a cache of the dataset looks the same until its first epoch ends"
    sure = any(leak.sure for leak in leaks)
    if not sure:
        because += "; this little may be due to the allocator: record more steps to be sure"
    harmless = cache == "fits" or not sure or (full is not None and full[0] > A_WEEK)
    return Finding(
        severity=Severity.NOTE if harmless else Severity.WARNING,
        confidence=CONFIDENCE[cache] if sure else Confidence.POSSIBLE,
        because=because,
        evidence=(
            Observation(
                name=f"growth of {what}",
                value=round(worst.per_step, 3),
                unit="MiB/step",
                expected=PER_STEP,
                source="median slope of all pairs of samples (Theil-Sen); less is not worth a fix",
            ),
        ),
        where=Where(hosts=tuple(sorted({leak.growth.host for leak in leaks} - {""})), ranks=ranks),
        cost=Cost(
            value=round(sum(leak.per_hour for leak in leaks) / MIB_PER_GIB, 2), unit="GiB/hour"
        ),
        fixes=tuple(_fixes(worst.workers, without_gc)),
    )


def _what(workers: bool) -> str:
    return "the DataLoader workers" if workers else "the process"


def _span(hours: float) -> str:
    if hours < 1:
        return f"{60 * hours:.0f} minutes"
    return f"{hours:.0f} hours" if hours < 48 else f"{hours / 24:.0f} days"


def _fixes(workers: bool, without_gc: bool) -> Iterator[Fix]:
    if without_gc:
        yield Fix(
            summary="collect garbage at the same steps on all ranks",
            paste="if step % 200 == 0:\n    gc.collect()",
            language="python",
            caution="nothing else frees memory held by reference cycles",
        )
    if workers:
        yield Fix(
            summary="store arrays or tensors in the dataset, not lists and dicts of Python objects",
            paste=(
                "self.paths = numpy.array(paths, dtype=numpy.bytes_)"
                "  # not a list of str: counting references copies its pages\n"
                "self.labels = torch.tensor(labels)"
            ),
            language="python",
        )
        yield Fix(
            summary="start new workers in each epoch, which frees their memory",
            paste="DataLoader(…, persistent_workers=False)",
            language="python",
            caution="costs their start in each epoch, and frees nothing before the epoch ends",
        )
    else:
        yield Fix(
            summary="keep numbers of logged values, not tensors, and limit caches",
            paste="history.append(loss.item())  # not: history.append(loss)",
            language="python",
        )
        yield Fix(
            summary="find the lines that allocate the growing memory",
            paste=(
                "import tracemalloc; tracemalloc.start()  # at the top of the script\n"
                "# every 100 steps; of tensors it shows the Python objects only:\n"
                "print(*tracemalloc.take_snapshot().statistics('lineno')[:10], sep='\\n')"
            ),
            language="python",
            caution="slows Python down while it is on",
        )
