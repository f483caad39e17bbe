"""Whether the ranks have exclusive CPUs. Pure: recorded steps in, a verdict out."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from ddoctor.analysis.work_imbalance import on_cpu
from ddoctor.evidence.steps import Steps
from ddoctor.evidence.training import RankUse

# Ranks that share their CPUs with other processes lag alternately, and so do gloo's threads, which
# is no fault of the job. The limits: the share of the time in which a rank waits in the run queue,
# and the number of CPUs that other processes use.
QUEUED, TAKEN = 0.05, 0.5
# Two virtual CPUs may be one core, or shared with other machines. Measured on two of those, healthy
# ranks alternately used a CPU for 15 to 27 % longer than their peers, for seconds.
SLOWER = 1.1


def have_their_cpus(steps: Steps, use: Sequence[RankUse]) -> bool:
    """Whether the ranks work on GPUs, or no other process was seen on their CPUs."""
    if all(rank.place.device != "cpu" for rank in steps.ranks):
        return True
    hosts = [host for one in use for host in one.hosts]
    return (
        bool(hosts)
        and _are_alike(steps)
        and all(
            host.waited is not None
            and host.waited < QUEUED
            and (host.neighbours is None or host.neighbours < TAKEN)
            for host in hosts
        )
    )


def _are_alike(steps: Steps) -> bool:
    """Whether the ranks use about the same CPU time, or their CPU time is not known."""
    each = [median(row) for row in on_cpu(steps) if row]
    return not each or max(each) < SLOWER * min(each)
