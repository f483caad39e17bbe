"""Ranks times threads far exceed the CPUs, so the threads wait for each other.

OMP_NUM_THREADS counts for every rank. The threads of one parallel loop wait for the slowest of them
by spinning, so that too many threads are slower than few: data preparation, CPU optimizers and gloo
suffer first. torchrun sets it to 1 where it is not set and there is more than one rank.

Seen from outside: a load average far above the number of CPUs, and much system time in ``top``.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.evidence.environment import Environment
from ddoctor.evidence.gpus import Gpus
from ddoctor.evidence.host import Cpus
from ddoctor.evidence.probes import ProbeRuns
from ddoctor.evidence.ranks import local_ranks
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity

EXPLAINS = ("dataloader-bottleneck",)

# Measured with torch 2.13, two ranks on two CPUs: with two threads each (2 times the CPUs) a round
# of matrix products took 1.7 to 3 times as long as with one thread each.
TOO_MANY = 2.0


def too_many_threads(
    cpus: Cpus, environment: Environment, gpus: Gpus | None, runs: ProbeRuns | None
) -> Iterator[Finding]:
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
