"""DataLoader workers, threads or processes of the script take the CPUs that the training needs.

The main thread of each rank needs a CPU at all times: to compute, or to launch the kernels of its
GPU. Workers that decode expensive items, and threads or processes that poll a queue, take part of
it on a host with few CPUs. No batch comes late then, and yet each step takes longer.

Symptoms: all phases of the step are longer; the load of the host is above its number of CPUs.

To fix it, make the helpers' work cheaper, let those that wait sleep, or ask for more CPUs.
"""

# Above 150 lines: recorded and live runs, workers, threads and processes.

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from ddoctor.analysis import endings, interpreter_lock, live_cost, opened_again, polling
from ddoctor.analysis.cpu_contention import TAKEN, held_up, median_wait, workers_busy
from ddoctor.analysis.live_ranks import LiveRankState
from ddoctor.analysis.live_state import LiveState
from ddoctor.analysis.loader_workers import computed_once
from ddoctor.analysis.stragglers import enough
from ddoctor.evidence.frames import Frame
from ddoctor.evidence.live import LiveWorker
from ddoctor.evidence.loading import Loading
from ddoctor.evidence.steps import Steps
from ddoctor.evidence.threads import ScriptThread, ScriptThreads
from ddoctor.evidence.training import RankHost, RankUse
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity, Where

EXPLAINS = ("communication-bound-step", "scaling-efficiency-low", "compute-bound")

# What the helpers use, as a part of what the main threads miss; of a CPU that both want, the
# kernel gives each a half.
MOST = 0.5


@dataclass(frozen=True)
class Helpers:
    """Helpers of one kind, on all ranks."""

    what: str
    """Before the number of CPUs, in a sentence."""
    cpus: Mapping[int, float]
    """The CPUs that they use, by rank."""
    line: Frame | None
    """Where they are mostly; None: not known."""
    dataset: str = ""
    """Of workers: what they read; empty: they are none."""

    def mean(self, ranks: Sequence[RankHost]) -> float:
        """The CPUs that they use on one of these ranks."""
        return sum(self.cpus.get(rank.rank, 0.0) for rank in ranks) / len(ranks)

    @property
    def fixes(self) -> Sequence[Fix]:
        """What makes them cheaper without less work."""
        if self.line is None:
            return ()
        kept_open = opened_again.kept_open(self.line) if self.dataset else ()
        return [*kept_open, *polling.sleeping(self.line)]


def while_training(
    steps: Steps, use: RankUse, loading: Loading | None, script_threads: ScriptThreads | None
) -> Iterator[Finding]:
    if not enough(steps):
        return
    loaders = loading.loaders if loading is not None else ()
    made = next((one for one in loaders if one.num_workers and one.lines), None)
    workers = Helpers(
        "their DataLoader workers use",
        workers_busy(loading, steps) if loading is not None else {},
        opened_again.among(made.lines) or made.lines[0].frame if made is not None else None,
        (made.dataset if made is not None else "") or "the dataset",
    )
    processes = Helpers(
        "another process of each uses",
        {one.rank: one.helpers for one in use.hosts},
        max(use.hosts, key=lambda one: one.helpers).helper if use.hosts else None,
    )
    threads = _threads(script_threads.threads if script_threads is not None else ())
    yield from _found(use, (workers, processes, threads), live_cost.TOLD)


def in_a_live_run(
    live: LiveState, use: RankUse, script_threads: tuple[ScriptThreads, ...] | None
) -> Iterator[Finding]:
    if not live.moves:
        return
    every = [(rank, one) for rank in live.ranks for one in rank.seen.workers]
    workers = Helpers(
        "their DataLoader workers use",
        *_sampled([(rank, one) for rank, one in every if one.loads_data]),
        "the dataset",
    )
    processes = Helpers(
        "another process of each uses",
        *_sampled([(rank, one) for rank, one in every if not one.loads_data]),
    )
    threads = _threads([one for section in script_threads or () for one in section.threads])
    # py-spy takes a part of the CPUs, too.
    yield from _found(use, (workers, processes, threads), live_cost.SURE)


def _sampled(
    rows: Sequence[tuple[LiveRankState, LiveWorker]],
) -> tuple[Mapping[int, float], Frame | None]:
    """The CPUs that these processes use, by rank, and where they are mostly."""
    cpus: dict[int, float] = {}
    for rank, one in rows:
        used = one.cpu_seconds / rank.seconds if rank.seconds else 0.0
        cpus[rank.rank] = cpus.get(rank.rank, 0.0) + used
    lines = Counter(one.line for _, one in rows if one.line is not None)
    opens = next(filter(opened_again.opens, lines), None)
    return cpus, opens or max(lines, key=lambda line: lines[line], default=None)


def _threads(threads: Sequence[ScriptThread]) -> Helpers:
    cpus, lines = defaultdict[int, float](float), defaultdict[Frame, float](float)
    for rank in {one.rank for one in threads}:
        for line, used in interpreter_lock.busy(threads, rank).items():
            cpus[rank] += used
            lines[line] += used
    most = max(lines, key=lambda line: lines[line], default=None)
    return Helpers("another thread of each uses", cpus, most)


def _found(use: RankUse, helpers: Sequence[Helpers], least: float) -> Iterator[Finding]:
    """``least``: share of the time for which they wait, from which on it is reported."""
    for host, ranks in use.by_host.items():
        waited = median_wait(ranks)
        if waited is None or waited < live_cost.TOLD or _otherwise_crowded(ranks):
            continue
        taken = sum(one.mean(ranks) for one in helpers)
        others = max((rank.neighbours or 0.0 for rank in ranks), default=0.0)
        if taken < MOST * waited or others >= max(TAKEN, taken * len(ranks)):
            continue
        most = max(helpers, key=lambda one: one.mean(ranks))
        at = f"{endings.at(most.line)}{endings.quoted(most.line)}"
        if most.dataset:
            at = f" a rank{f', mostly{at}' if at else ''}"
        avoidable = most.fixes
        if waited < least and not avoidable:
            continue
        yield Finding(
            # Expensive items may be needed; to ask for something all the time never is.
            severity=Severity.WARNING if avoidable else Severity.NOTE,
            confidence=Confidence.LIKELY,
            because=f"the main threads on {host} wait for a CPU for {waited:.0%} of the time, "
            f"while {most.what} {most.mean(ranks):.2g} CPUs{at}",
            evidence=(
                Observation(
                    name="waiting for a CPU",
                    value=round(100 * waited),
                    unit="% of the time",
                    source="/proc/PID/schedstat of the main threads, median of the ranks",
                ),
            ),
            where=Where(hosts=(host,)),
            cost=Cost(value=round(waited, 3), unit="share of step"),
            fixes=(
                *avoidable,
                *([_for_workers(most.dataset)] if most.dataset else []),
                Fix(
                    summary="or ask for more CPUs: one for each rank, and those of its helpers",
                    paste=f"srun --ntasks-per-node={len(ranks)} "
                    f"--cpus-per-task={ceil(1 + taken)} …",
                ),
            ),
        )


def _otherwise_crowded(ranks: Sequence[RankHost]) -> bool:
    """Whether masks, or torch's own threads, keep the CPUs from them."""
    return any(map(interpreter_lock.crowded, ranks)) or any(held_up(ranks))


def _for_workers(dataset: str) -> Fix:
    return computed_once(
        "compute the items once before the run, or make them cheaper",
        f"what {dataset} computes again in every epoch",
    )
