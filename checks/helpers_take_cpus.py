"""DataLoader workers or threads of the script take the CPUs that the training itself needs.

The main thread of each rank needs a CPU at all times: to compute, or to launch the kernels of its
GPU. Workers that decode expensive items, and threads that poll a queue, take part of it on a host
with few CPUs. No batch comes late then, and yet each step takes longer.

Symptoms: all phases of the step are longer; the load of the host is above its number of CPUs.

To fix it, make the helpers' work cheaper, let waiting threads sleep, or ask for more CPUs.
"""

# Above 150 lines: recorded and live runs, workers and threads.

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import ceil

from ddoctor.analysis import endings, interpreter_lock, live_cost, opened_again, polling
from ddoctor.analysis.cpu_contention import TAKEN, held_up, median_wait, workers_busy
from ddoctor.analysis.live_state import LiveState
from ddoctor.analysis.loader_workers import computed_once
from ddoctor.analysis.stragglers import enough
from ddoctor.evidence.frames import Frame
from ddoctor.evidence.loading import Loading
from ddoctor.evidence.steps import Steps
from ddoctor.evidence.threads import ScriptThread, ScriptThreads
from ddoctor.evidence.training import RankHost, RankUse
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity, Where

EXPLAINS = ("communication-bound-step", "scaling-efficiency-low", "compute-bound")

# What the helpers use, as a part of what the main threads miss; of a CPU that both want, the
# kernel gives each a half.
MOST = 0.5


def while_training(
    steps: Steps, use: RankUse, loading: Loading | None, script_threads: ScriptThreads | None
) -> Iterator[Finding]:
    if not enough(steps):
        return
    workers = workers_busy(loading, steps) if loading is not None else {}
    threads = script_threads.threads if script_threads is not None else ()
    loaders = loading.loaders if loading is not None else ()
    made = next((one for one in loaders if one.num_workers and one.lines), None)
    yield from _found(
        use,
        workers,
        threads,
        opened_again.among(made.lines) or made.lines[0].frame if made is not None else None,
        made.dataset if made is not None else "",
        live_cost.TOLD,
    )


def in_a_live_run(
    live: LiveState, use: RankUse, script_threads: tuple[ScriptThreads, ...] | None
) -> Iterator[Finding]:
    if not live.moves:
        return
    workers = {
        rank.rank: sum(worker.cpu_seconds for worker in rank.seen.workers) / rank.seconds
        for rank in live.ranks
        if rank.seconds
    }
    threads = [one for section in script_threads or () for one in section.threads]
    stacks = [worker.stack for rank in live.ranks for worker in rank.seen.workers]
    inner = [next((one for one in reversed(stack) if one.of_user), None) for stack in stacks]
    lines = Counter(filter(None, inner))
    opens = next(filter(opened_again.opens, lines), None)
    made = opens or max(lines, key=lambda line: lines[line], default=None)
    # py-spy takes a part of the CPUs, too.
    yield from _found(use, workers, threads, made, "", live_cost.SURE)


def _found(
    use: RankUse,
    workers: Mapping[int, float],
    threads: Sequence[ScriptThread],
    made: Frame | None,
    dataset: str,
    least: float,
) -> Iterator[Finding]:
    """``workers``: CPUs that they use, by rank. ``made``: their line; ``least``: share of time."""
    for host, ranks in use.by_host.items():
        waited = median_wait(ranks)
        if waited is None or waited < live_cost.TOLD or _otherwise_crowded(ranks):
            continue
        of_workers = _mean(workers, ranks)
        busiest, of_threads = _busiest(threads, ranks)
        taken = of_workers + of_threads
        others = max((rank.neighbours or 0.0 for rank in ranks), default=0.0)
        if taken < MOST * waited or others >= max(TAKEN, taken * len(ranks)):
            continue
        if of_workers >= of_threads:
            at = f", mostly{_at(made)}" if made is not None else ""
            what = f"their DataLoader workers use {of_workers:.2g} CPUs a rank{at}"
            fixes = [*opened_again.kept_open(made), _for_workers(dataset or "the dataset")]
            avoidable = opened_again.opens(made)
        else:
            what = f"another thread of each uses {of_threads:.2g} CPUs{_at(busiest)}"
            fixes = [*polling.sleeping(busiest)] if busiest is not None else []
            avoidable = bool(fixes)
        if waited < least and not avoidable:
            continue
        yield Finding(
            # Expensive items may be needed; to ask for something all the time never is.
            severity=Severity.WARNING if avoidable else Severity.NOTE,
            confidence=Confidence.LIKELY,
            because=f"the main threads on {host} wait for a CPU for {waited:.0%} of the time, "
            f"while {what}",
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
                *fixes,
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


def _mean(busy: Mapping[int, float], ranks: Sequence[RankHost]) -> float:
    return sum(busy.get(rank.rank, 0.0) for rank in ranks) / len(ranks)


def _busiest(
    threads: Sequence[ScriptThread], ranks: Sequence[RankHost]
) -> tuple[Frame | None, float]:
    """The line of the busiest threads, and the mean CPUs that all of them use on a rank."""
    used: dict[Frame, float] = {}
    for rank in ranks:
        for line, cpus in interpreter_lock.busy(threads, rank.rank).items():
            used[line] = used.get(line, 0.0) + cpus / len(ranks)
    return max(used, key=lambda line: used[line], default=None), sum(used.values())


def _at(line: Frame | None) -> str:
    return f"{endings.at(line)}{endings.quoted(line)}"


def _for_workers(dataset: str) -> Fix:
    return computed_once(
        "compute the items once before the run, or make them cheaper",
        f"what {dataset} computes again in every epoch",
    )
