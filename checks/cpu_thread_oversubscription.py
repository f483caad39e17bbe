"""The ranks run far more threads than there are CPUs, so the threads wait for each other.

OMP_NUM_THREADS applies to every rank. The threads of a parallel loop spin until the slowest thread
finishes, so too many threads are slower than few. Data preparation, CPU optimizers and gloo suffer
first. torchrun sets OMP_NUM_THREADS to 1 if it is unset and a node has more than one rank.

Symptoms: a load average far above the number of CPUs, and much system time in ``top``.

To fix it, set OMP_NUM_THREADS (or ``torch.set_num_threads``) to the CPUs of a host divided by its
ranks.
"""

# Above 150 lines: the environment before a run, and the threads seen in one, have different fixes.

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from ddoctor.analysis.local_ranks import local_ranks
from ddoctor.evidence.environment import Environment
from ddoctor.evidence.gpus import Gpus
from ddoctor.evidence.host import Cpus
from ddoctor.evidence.probes import ProbeRuns
from ddoctor.evidence.training import RankHost, RankUse
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity, Where

EXPLAINS = (
    "dataloader-bottleneck",
    "straggler-rank",
    # gloo moves data with threads of its own.
    "communication-bound-step",
    "scaling-efficiency-low",
    "compute-bound",
)

# Measured with torch 2.13, two ranks on two CPUs: with two threads each (2 times the CPUs) a round
# of matrix products took 1.7 to 3 times as long as with one thread each.
TOO_MANY = 2.0
# A slowdown counts from a tenth of the time on. Measured this way, two ranks with two threads each
# waited for a CPU for half of the time, and for 3 % with one thread each.
HELD_UP = 0.1


def too_many_threads(
    cpus: Cpus,
    environment: Environment,
    gpus: Gpus | None,
    runs: ProbeRuns | None,
    use: RankUse | None,
) -> Iterator[Finding]:
    if use is not None and cpus.host in use.by_host:
        return  # what was measured during the training is better evidence
    # OpenMP takes a list, one number for each level of nesting.
    threads = (environment.get("OMP_NUM_THREADS") or "").partition(",")[0].strip()
    ranks = local_ranks(gpus, environment, runs)
    if not threads.isdigit() or ranks is None:
        return
    total = ranks.number * int(threads)
    if total < TOO_MANY * cpus.usable:
        return
    fitting = max(1, int(cpus.usable / ranks.number))
    if int(threads) <= fitting:
        return
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        because=(
            f"{ranks.number} ranks ({ranks.told_by}) with OMP_NUM_THREADS={threads} run {total} "
            f"threads on {cpus.usable:g} usable CPUs"
        ),
        evidence=(
            Observation(
                name="threads of all ranks",
                value=total,
                expected=round(cpus.usable, 1),
                source="affinity mask and cgroup quota",
            ),
        ),
        fixes=(
            Fix(
                summary="divide the CPUs among the ranks",
                paste=f"export OMP_NUM_THREADS={fitting}",
                caution="DataLoader workers need CPUs too: use even fewer with many workers",
            ),
        ),
    )


def while_training(use: RankUse) -> Iterator[Finding]:
    for host, ranks in use.by_host.items():
        usable = float(len({cpu for rank in ranks for cpu in rank.affinity}))
        usable = min([usable, *(rank.quota for rank in ranks if rank.quota is not None)])
        fitting = max(1, int(usable / len(ranks)))
        total = sum(rank.threads for rank in ranks)
        crowding = [rank for rank in ranks if rank.threads > fitting]
        seen = [rank.waited for rank in crowding if rank.waited is not None]
        waited = median(seen) if seen else None
        if crowding and total >= TOO_MANY * usable and (waited is None or waited >= HELD_UP):
            where = Where(
                hosts=(host,),
                ranks=tuple(one.rank for one in crowding) if len(crowding) < len(ranks) else (),
            )
            yield _crowded(ranks, where, usable, waited, _fewer(crowding, fitting))


def _crowded(
    ranks: Sequence[RankHost], where: Where, usable: float, waited: float | None, fix: Fix
) -> Finding:
    total, most = sum(rank.threads for rank in ranks), max(rank.threads for rank in ranks)
    workers = sum(rank.workers for rank in ranks)
    and_workers = f", and {workers} DataLoader workers," if workers else ""
    delay = (
        f": the main threads waited in the run queue for {waited:.0%} of the time"
        if waited is not None
        else "; /proc/PID/schedstat shows how long the main threads wait for one"
    )
    return Finding(
        severity=Severity.WARNING,
        confidence=Confidence.POSSIBLE if waited is None else Confidence.LIKELY,
        because=(
            f"{len(ranks)} ranks on {where.hosts[0]} with up to {most} threads each{and_workers} "
            f"have {usable:g} usable CPUs{delay}"
        ),
        evidence=(
            Observation(
                name="threads of all ranks",
                value=total,
                expected=round(usable, 1),
                source="compute threads; affinity mask and cgroup quota",
            ),
        ),
        where=where,
        cost=None if waited is None else Cost(value=round(waited, 3), unit="share of step"),
        fixes=(fix,),
    )


def _fewer(crowding: Sequence[RankHost], fitting: int) -> Fix:
    settings = (f"torch.threads={fitting}",)
    if any(rank.omp_threads not in (None, rank.threads) for rank in crowding):
        return Fix(
            summary="divide the CPUs among the ranks in the script, which sets the threads itself",
            paste=f"torch.set_num_threads({fitting})",
            language="python",
            caution="DataLoader workers need CPUs too: use even fewer with many workers",
            settings=settings,
        )
    return Fix(
        summary="divide the CPUs among the ranks",
        paste=f"export OMP_NUM_THREADS={fitting}",
        caution="DataLoader workers need CPUs too: use even fewer with many workers",
        settings=settings,
    )
