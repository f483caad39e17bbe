"""The ranks run far more threads than there are CPUs, so the threads wait for each other.

OMP_NUM_THREADS applies to every rank. The threads of a parallel loop spin until the slowest thread
finishes, so too many threads are slower than few. Data preparation, CPU optimizers and gloo suffer
first. torchrun sets OMP_NUM_THREADS to 1 if it is unset and a node has more than one rank.

Symptoms: a load average far above the number of CPUs, and much system time in ``top``.

To fix it, set OMP_NUM_THREADS (or ``torch.set_num_threads``) to the CPUs of a host divided by its
ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddoctor.analysis import log_events
from ddoctor.analysis.cpu_contention import FOLLOWS, HELD_UP, median_wait
from ddoctor.analysis.local_ranks import LocalRanks
from ddoctor.analysis.parsing import whole
from ddoctor.evidence.host import Cpus
from ddoctor.evidence.log import Log
from ddoctor.evidence.software import Environment
from ddoctor.evidence.training import RankHost, RankUse
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity, Where

EXPLAINS = FOLLOWS

# Measured with torch 2.13, two ranks on two CPUs: with two threads each (2 times the CPUs) a round
# of matrix products took 1.7 to 3 times as long as with one thread each.
TOO_MANY = 2.0


def too_many_threads(
    cpus: Cpus, environment: Environment, ranks: LocalRanks, use: RankUse | None
) -> Iterator[Finding]:
    if use is not None and cpus.host in use.by_host:
        return  # what was measured during the training is better evidence
    # OpenMP takes a list, one number for each level of nesting.
    threads = whole((environment.get("OMP_NUM_THREADS") or "").partition(",")[0].strip())
    if threads is None or ranks.number is None:
        return
    total = ranks.number * threads
    if total < TOO_MANY * cpus.usable:
        return
    fitting = max(1, int(cpus.usable / ranks.number))
    if threads <= fitting:
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
        fixes=(_fewer(fitting),),
    )


def while_training(use: RankUse) -> Iterator[Finding]:
    for host, ranks in use.by_host.items():
        usable = float(len({cpu for rank in ranks for cpu in rank.affinity}))
        usable = min([usable, *(rank.quota for rank in ranks if rank.quota is not None)])
        fitting = max(1, int(usable / len(ranks)))
        total = sum(rank.threads for rank in ranks)
        crowding = [rank for rank in ranks if rank.threads > fitting]
        waited = median_wait(crowding)
        if not crowding or total < TOO_MANY * usable or (waited is not None and waited < HELD_UP):
            continue
        most, workers = max(rank.threads for rank in ranks), sum(rank.workers for rank in ranks)
        and_workers = f", and {workers} DataLoader workers," if workers else ""
        delay = (
            f": the main threads waited in the run queue for {waited:.0%} of the time"
            if waited is not None
            else "; /proc/PID/schedstat shows how long the main threads wait for one"
        )
        yield Finding(
            severity=Severity.WARNING,
            confidence=Confidence.POSSIBLE if waited is None else Confidence.LIKELY,
            because=(
                f"{len(ranks)} ranks on {host} with up to {most} threads each{and_workers} "
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
            where=Where(
                hosts=(host,),
                ranks=tuple(one.rank for one in crowding) if len(crowding) < len(ranks) else (),
            ),
            cost=None if waited is None else Cost(value=round(waited, 3), unit="share of step"),
            fixes=(_fewer(fitting, crowding),),
        )


def in_a_log(log: Log) -> Iterator[Finding]:
    if event := log.first("no-more-threads"):
        yield log_events.finding(
            [event],
            "each process starts as many threads as there are CPUs, until the limit of processes "
            "refuses more",
            _fewer(1),
            Fix(summary="or look at the limit", paste="ulimit -u; cat /sys/fs/cgroup/pids.max"),
            confidence=Confidence.POSSIBLE,
        )


def _fewer(fitting: int, crowding: Sequence[RankHost] = ()) -> Fix:
    settings = (f"torch.threads={fitting}",) if crowding else ()
    in_script = any(rank.omp_threads not in (None, rank.threads) for rank in crowding)
    where = " in the script, which sets the threads itself" if in_script else ""
    return Fix(
        summary=f"divide the CPUs among the ranks{where}",
        paste=f"torch.set_num_threads({fitting})"
        if in_script
        else f"export OMP_NUM_THREADS={fitting}",
        language="python" if in_script else "sh",
        caution="DataLoader workers need CPUs too: use even fewer with many workers",
        settings=settings,
    )
