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

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal

from ddoctor.analysis import endings
from ddoctor.analysis.live_state import LiveState
from ddoctor.analysis.script_source import shown
from ddoctor.analysis.trend import Trend, trend
from ddoctor.evidence.host import Memory
from ddoctor.evidence.live import LiveRank
from ddoctor.evidence.loading import Loader, Loading
from ddoctor.evidence.script import Script
from ddoctor.evidence.source_lines import SourceLine
from ddoctor.evidence.steps import Cache, Growth, MemoryOverTime
from ddoctor.evidence.training import RankUse
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity, Where

EXPLAINS = ("host-ram-oom", "step-time-grows")

# MiB; 100,000 steps of it make 10 GiB.
PER_STEP = 0.1
# MiB. Measured with torch 2.13 on a CPU: within 80 steps the resident size of healthy loops with
# workers varies by up to 18 MiB, and one in a hundred drifts by 21.
GROWTH = 32.0
# A heap of glibc's malloc for one thread (HEAP_MAX_SIZE): less may be due to the allocator.
SURE_GROWTH = 64.0
# Batches. What decodes and stacks them first grows to several of them: by the size of 4 per worker
# within 120 steps, with images on torch 2.13, and then no further.
WORKING_SET = 8
# Slurm partitions commonly end a job after some days; memory for a week is not urgent.
A_WEEK = 7 * 24.0
# A run whose memory is full within it is about to end. Samples of some seconds say nothing about
# much later.
AN_HOUR = 1.0
# Activities of a training step: a rank that only loads or evaluates may keep memory on purpose.
TRAINING = ("backward", "backward-or-wait", "optimizer")
# By whether it may be a cache of the dataset.
CONFIDENCE = {"no": Confidence.CERTAIN, "maybe": Confidence.LIKELY, "fits": Confidence.POSSIBLE}
# Memory that malloc keeps free doubled a sound process at most (348 to 689 MiB).
GAPS = 2.5
CACHE = "a cache of the dataset looks the same until its first epoch ends"

MIB_PER_GIB = 1024
FEW = 2
# Calls that a cache answers, for each entry that it gets.
SELDOM = 0.1


@dataclass(frozen=True, kw_only=True)
class Leak:
    """Memory that grows on one rank."""

    growth: Growth
    workers: bool
    amounts: Sequence[float]
    """MiB at each of the times."""
    found: Trend
    working_set: float
    """MiB that it may grow by, until it has all that it works with."""

    @property
    def sure(self) -> bool:
        """Whether it grew by more than the allocator and the work on batches explain."""
        return self.found.growth >= max(SURE_GROWTH, self.working_set)

    @property
    def per_hour(self) -> float:
        """MiB."""
        times, steps = self.growth.times, self.growth.steps
        return self.found.per_step * (steps[-1] - steps[0]) / (times[-1] - times[0]) * 3600


def growing(
    memory: tuple[MemoryOverTime, ...],
    hosts: tuple[Memory, ...] | None,
    loading: tuple[Loading, ...] | None,
    use: tuple[RankUse, ...] | None,
    scripts: tuple[Script, ...] | None,
) -> Iterator[Finding]:
    ranks = [rank for one in memory for rank in one.ranks]
    free = {section.host: _free(section, ranks) for section in hosts or ()}
    loaders = [loader for section in loading for loader in section.loaders] if loading else None
    collected = {one.rank: one.gc_enabled for section in use or () for one in section.hosts}
    every = [
        Leak(
            growth=rank,
            workers=workers,
            amounts=amounts,
            found=found,
            working_set=_working_set(rank, workers, loaders or ()),
        )
        for rank in ranks
        for workers, amounts in ((False, rank.used), (True, rank.workers_used))
        if (found := trend(rank.steps, amounts)) is not None
        and found.proves(GROWTH)
        and found.per_step >= PER_STEP
        # A rank that runs ahead of the others holds more, until it waits for them.
        and amounts[-1] - amounts[0] >= found.growth / 2
        # Free memory that malloc has returned to the kernel is not resident, but counted as free.
        and _grows(rank.steps, rank.workers if workers else rank.resident)
    ]
    for workers in (False, True):
        leaks = [leak for leak in every if leak.workers is workers]
        if leaks:
            without_gc = not any(collected.get(leak.growth.rank, True) for leak in leaks)
            # Of workers, the dataset keeps it.
            kept = [one for script in scripts or () for one in script.kept_values if not workers]
            cache = _cache(leaks, loaders, free)
            # A line that keeps something of each step is no cache of a dataset that ends.
            cache = "maybe" if kept and cache == "fits" else cache
            filled = [] if workers else list(_filled(leaks))
            # Nor is one that answers nothing.
            cache = "no" if filled else cache
            yield _finding(leaks, _full(every, free), cache, without_gc, kept, filled)


def _filled(leaks: Sequence[Leak]) -> Iterator[Cache]:
    """Caches without a limit that get an entry in each step, and seldom answer."""
    for leak in leaks:
        steps = leak.growth.steps[-1] - leak.growth.steps[0]
        for one in leak.growth.caches:
            if one.added >= steps and one.hits < SELDOM * one.added:
                yield one


def _working_set(rank: Growth, workers: bool, loaders: Sequence[Loader]) -> float:
    """MiB of several batches in each process that loads them."""
    mine = (one for one in loaders if one.rank == rank.rank)
    sizes = ((one.batch_bytes or 0) * (one.num_workers if workers else 1) for one in mine)
    return WORKING_SET * max(sizes, default=0) / 2**20


def _grows(steps: Sequence[int], amounts: Sequence[float]) -> bool:
    found = trend(steps, amounts)
    return found is not None and found.proves(GROWTH)


def in_a_live_run(live: LiveState, hosts: tuple[Memory, ...] | None) -> Iterator[Finding]:
    """Memory grows so fast that it is full before the next attach."""
    if not live.moves:
        return
    free = {section.host: _free(section) for section in hosts or ()}
    for look in live.looks:
        rows = [(rank, workers) for rank in look.ranks for workers in (False, True)]
        rates = {row: rate for row in rows if (rate := _per_hour(*row, look.seconds)) is not None}
        hours = free.get(look.host, inf) / sum(rates.values()) if rates else inf
        if hours > AN_HOUR:
            continue
        rank, workers = max(rates, key=lambda row: rates[row])
        # From outside, memory that malloc keeps free looks like a leak: in two sound trainings on
        # CPUs, 21 of 320 periods of 5 s grew by 70 to 260 MiB, as steadily as a leak.
        amounts = rank.workers_held if workers else rank.held
        gaps = amounts[-1] < GAPS * amounts[0]
        unsure = gaps and all(not theirs and not one.on_gpu for one, theirs in rates)
        yield Finding(
            severity=Severity.NOTE if unsure else Severity.ERROR,
            confidence=Confidence.POSSIBLE if unsure else Confidence.LIKELY,
            because=(
                f"{_what(workers)} of rank {rank.rank} grew from {amounts[0]:.0f} to "
                f"{amounts[-1]:.0f} MiB in {look.seconds:.0f} s, without a pause"
                + (f" (the fastest of {len(rates)})" if len(rates) > 1 else "")
                + f"; at this rate {look.host} is full in {_span(hours)}; {CACHE}"
                + ("; so does memory that malloc keeps free: `ddoctor run` can tell" * unsure)
            ),
            evidence=tuple(
                Observation(
                    name=f"growth of {_what(theirs)} of rank {one.rank}",
                    value=round(rate / 3600, 2),
                    unit="MiB/s",
                    source="linear fit of its private memory",
                )
                for (one, theirs), rate in rates.items()
            ),
            where=Where(hosts=(look.host,), ranks=tuple(sorted({one.rank for one, _ in rates}))),
            cost=Cost(value=round(sum(rates.values()) / MIB_PER_GIB, 2), unit="GiB/hour"),
            fixes=tuple(_fixes(workers, without_gc=False)),
        )


def _per_hour(rank: LiveRank, workers: bool, seconds: float) -> float | None:
    """MiB per hour of growth; None: it does not clearly grow, or this rank does not train."""
    amounts = rank.workers_held if workers else rank.held
    found = trend(range(len(amounts)), amounts)
    if found is None or not found.proves(SURE_GROWTH) or not any(map(rank.share, TRAINING)):
        return None
    return found.growth / seconds * 3600


def _free(memory: Memory, ranks: Sequence[Growth] = ()) -> float:
    """MiB that processes may still take.

    ddoctor reads the memory of a host after the recorded ``ranks`` end, so their last memory counts
    as taken.
    """
    free = memory.available
    if memory.limit is not None and memory.used_in_limit is not None:
        free = min(free, memory.limit - memory.used_in_limit)
    taken = sum(rank.last for rank in ranks if rank.host == memory.host)
    return max(free / 2**20 - taken, 0.0)


def _full(leaks: Sequence[Leak], free: Mapping[str, float]) -> tuple[float, str] | None:
    """The hours until the first host is full, and its name, with all growth on that host."""
    rates: dict[str, float] = defaultdict(float)
    for leak in leaks:
        rates[leak.growth.host] += leak.per_hour
    return min(
        ((free[host] / rate, host) for host, rate in rates.items() if host in free), default=None
    )


def _cache(
    leaks: Sequence[Leak], loaders: Sequence[Loader] | None, free: Mapping[str, float]
) -> Literal["no", "maybe", "fits"]:
    """Whether it may be a cache of the dataset in its first epoch.

    ``fits``: half of the free memory of each host would hold it at the end of that epoch.
    """
    sizes: dict[str, float] = defaultdict(float)
    for leak in leaks:
        here = [
            one
            for one in loaders or ()
            if one.rank == leak.growth.rank and (one.num_workers > 0) is leak.workers
        ]
        if loaders is not None and (not here or any(one.epoch_batches for one in here)):
            return "no"
        batches = max((one.batches or inf for one in here), default=inf)
        sizes[leak.growth.host] += leak.found.per_step * batches
    return "fits" if all(2 * sizes[host] <= free.get(host, 0.0) for host in sizes) else "maybe"


def _finding(
    leaks: Sequence[Leak],
    full: tuple[float, str] | None,
    cache: Literal["no", "maybe", "fits"],
    without_gc: bool,
    kept: Sequence[SourceLine],
    filled: Sequence[Cache],
) -> Finding:
    worst = max(leaks, key=lambda leak: leak.found.per_step)
    growth, per_step = worst.growth, worst.found.per_step
    what = _what(worst.workers)
    sure = bool(filled) or any(leak.sure for leak in leaks)
    clauses = (
        f"{what} of {endings.ranks(leak.growth.rank for leak in leaks)} grew by {per_step:.2g} MiB "
        "per step"
        + (f" (rank {growth.rank}, the fastest)" if len(leaks) > 1 else "")
        + f", from {worst.amounts[0]:.0f} to {worst.amounts[-1]:.0f} MiB in "
        f"{growth.steps[-1] - growth.steps[0]} steps, as fast at the end as at the start",
        f"at this rate {full[1]} is full in {_span(full[0])}" if full is not None else "",
        f"{' and '.join(map(shown, kept[:FEW]))} may be the reason: no line empties it"
        if kept
        else "",
        "".join(map(_told, filled[:1])),
        "Python's garbage collection is off" if without_gc else "",
        CACHE if cache != "no" else "",
        "" if sure else "this little may be due to the allocator: record more steps to be sure",
    )
    harmless = cache == "fits" or not sure or (full is not None and full[0] > A_WEEK)
    soon = full is not None and full[0] < AN_HOUR
    return Finding(
        severity=Severity.NOTE if harmless else Severity.ERROR if soon else Severity.WARNING,
        confidence=CONFIDENCE[cache] if sure else Confidence.POSSIBLE,
        because="; ".join(filter(None, clauses)),
        evidence=(
            Observation(
                name=f"growth of {what}",
                value=round(per_step, 3),
                unit="MiB/step",
                expected=PER_STEP,
                source="median slope of all pairs of samples (Theil-Sen); less is not worth a fix",
            ),
        ),
        where=Where.of([leak.growth for leak in leaks]),
        cost=Cost(
            value=round(sum(leak.per_hour for leak in leaks) / MIB_PER_GIB, 2), unit="GiB/hour"
        ),
        fixes=(*map(_limited, filled[:1]), *_fixes(worst.workers, without_gc)),
    )


def _told(cache: Cache) -> str:
    place = f"{cache.file.rpartition('/')[2]}:{cache.line}"
    answered = f"answered {cache.hits} calls" if cache.hits else "answered no call"
    return (
        f"the cache of {cache.function} ({place}) has no limit, and got {cache.added} entries in "
        f"these steps, but {answered}"
    )


def _limited(cache: Cache) -> Fix:
    return Fix.python(
        summary=f"limit the cache of {cache.function}, or drop it",
        paste="@functools.lru_cache(maxsize=1024)",
        caution="of a method, it also keeps each object that the method was called on",
    )


def _what(workers: bool) -> str:
    return "the DataLoader workers" if workers else "the process"


def _span(hours: float) -> str:
    if hours < 1:
        return f"{60 * hours:.0f} minutes"
    return f"{hours:.0f} hours" if hours < 48 else f"{hours / 24:.0f} days"


def _fixes(workers: bool, without_gc: bool) -> Iterator[Fix]:
    if without_gc:
        yield Fix.python(
            summary="collect garbage at the same steps on all ranks",
            paste="if step % 200 == 0:\n    gc.collect()",
            caution="nothing else frees memory held by reference cycles",
        )
    if workers:
        yield Fix.python(
            summary="store arrays or tensors in the dataset, not lists and dicts of Python objects",
            paste=(
                "self.paths = numpy.array(paths, dtype=numpy.bytes_)"
                "  # not a list of str: counting references copies its pages\n"
                "self.labels = torch.tensor(labels)"
            ),
        )
        yield Fix.python(
            summary="start new workers in each epoch, which frees their memory",
            paste="DataLoader(…, persistent_workers=False)",
            caution="costs their start in each epoch, and frees nothing before the epoch ends",
        )
    else:
        yield Fix.python(
            summary="keep numbers of logged values, not tensors, and limit caches",
            paste="history.append(loss.item())  # not: history.append(loss)",
        )
        yield Fix.python(
            summary="find the lines that allocate the growing memory",
            paste=(
                "import tracemalloc; tracemalloc.start()  # at the top of the script\n"
                "# every 100 steps; of tensors it shows the Python objects only:\n"
                "print(*tracemalloc.take_snapshot().statistics('lineno')[:10], sep='\\n')"
            ),
            caution="slows Python down while it is on",
        )
