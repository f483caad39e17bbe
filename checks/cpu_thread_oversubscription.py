"""Ranks times threads far exceed the CPUs, so the threads wait for each other.

OMP_NUM_THREADS counts for every rank. The threads of one parallel loop wait for the slowest of them
by spinning, so that too many threads are slower than few: data preparation, CPU optimizers and gloo
suffer first. torchrun sets it to 1 where it is not set and there is more than one rank.

Seen from outside: a load average far above the number of CPUs, and much system time in ``top``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from ddoctor.evidence.environment import Environment
from ddoctor.evidence.gpus import Gpus
from ddoctor.evidence.host import Cpus
from ddoctor.evidence.probes import ProbeRuns
from ddoctor.evidence.ranks import local_ranks
from ddoctor.evidence.training import RankHost, RankUse
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity, Where

EXPLAINS = ("dataloader-bottleneck",)

# Measured with torch 2.13, two ranks on two CPUs: with two threads each (2 times the CPUs) a round
# of matrix products took 1.7 to 3 times as long as with one thread each.
TOO_MANY = 2.0
# From a tenth of the time on a slowdown counts. So measured, two ranks with two threads each waited
# for a CPU for half of the time, and for 3 % with one each.
HELD_UP = 0.1


def too_many_threads(
    cpus: Cpus,
    environment: Environment,
    gpus: Gpus | None,
    runs: ProbeRuns | None,
    use: RankUse | None,
) -> Iterator[Finding]:
    if use is not None and cpus.host in use.by_host:
        return  # what was seen while it trained tells more
    # OpenMP takes a list, one number for each level of nesting.
    told = (environment.get("OMP_NUM_THREADS") or "").partition(",")[0].strip()
    ranks = local_ranks(gpus, environment, runs)
    if not told.isdigit() or ranks is None:
        return
    total = ranks.number * int(told)
    if total < TOO_MANY * cpus.usable:
        return
    fitting = max(1, int(cpus.usable / ranks.number))
    if int(told) <= fitting:
        return
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        because=(
            f"{ranks.number} ranks ({ranks.told_by}) with OMP_NUM_THREADS={told} make {total} "
            f"threads for {cpus.usable:g} usable CPUs"
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
                summary="share the CPUs out among the ranks",
                paste=f"export OMP_NUM_THREADS={fitting}",
                caution="DataLoader workers need CPUs too: with many of them still fewer",
            ),
        ),
    )


def while_training(
    uses: tuple[RankUse, ...], environments: tuple[Environment, ...] | None
) -> Iterator[Finding]:
    told = {section.host: section.get("OMP_NUM_THREADS") for section in environments or ()}
    for use in uses:
        for host, ranks in use.by_host.items():
            yield from _crowded(host, ranks, told.get(host))


def _crowded(host: str, ranks: Sequence[RankHost], told: str | None) -> Iterator[Finding]:
    usable = float(len({cpu for rank in ranks for cpu in rank.affinity}))
    usable = min([usable, *(rank.quota for rank in ranks if rank.quota is not None)])
    total, most = sum(rank.threads for rank in ranks), max(rank.threads for rank in ranks)
    fitting = max(1, int(usable / len(ranks)))
    seen = [rank.waited for rank in ranks if rank.waited is not None]
    waited = median(seen) if seen else None
    if total < TOO_MANY * usable or most <= fitting or (waited is not None and waited < HELD_UP):
        return
    workers = sum(rank.workers for rank in ranks)
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.POSSIBLE if waited is None else Confidence.LIKELY,
        because=(
            f"{len(ranks)} ranks on {host} with up to {most} threads each"
            + (f", and {workers} DataLoader workers," if workers else "")
            + f" have {usable:g} usable CPUs"
            + (
                f": the main threads waited in the run queue for {waited:.0%} of the time"
                if waited is not None
                else "; how long the main threads wait for one, /proc/PID/schedstat tells"
            )
        ),
        evidence=(
            Observation(
                name="threads of all ranks",
                value=total,
                expected=round(usable, 1),
                source="torch.get_num_threads(); affinity mask and cgroup quota",
            ),
        ),
        where=Where(hosts=(host,)),
        cost=None if waited is None else Cost(value=round(waited, 3), unit="share of step"),
        fixes=(_fewer(fitting, set_by_script=told is not None and told.strip() != str(most)),),
    )


def _fewer(threads: int, *, set_by_script: bool) -> Fix:
    settings = (f"torch.threads={threads}",)
    caution = "DataLoader workers need CPUs too: with many of them still fewer"
    if set_by_script:
        return Fix(
            summary="in the script, share the CPUs out among the ranks; it sets another number now",
            paste=f"torch.set_num_threads({threads})",
            language="python",
            caution=caution,
            settings=settings,
        )
    return Fix(
        summary="share the CPUs out among the ranks",
        paste=f"export OMP_NUM_THREADS={threads}",
        caution=caution,
        settings=settings,
    )
