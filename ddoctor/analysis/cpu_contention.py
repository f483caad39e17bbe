"""Whether the ranks have their CPUs for themselves. Pure: recorded steps in, a word out."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from ddoctor.analysis.work_imbalance import on_cpu
from ddoctor.evidence.steps import Steps
from ddoctor.evidence.training import RankUse

# Ranks on CPUs that others use as well are late by turns because of that, and so is what gloo's
# threads move for them, which is no fault of the job: where a rank waits in the run queue for this
# part of the time, or so many CPUs are taken.
QUEUED, TAKEN = 0.05, 0.5
# Two virtual CPUs may be one core, or other machines' as well. Measured on two of those, sound
# ranks were on a CPU for 15 to 27 % longer than their peers for seconds, by turns.
SLOWER = 1.1


def have_their_cpus(steps: Steps, use: Sequence[RankUse]) -> bool:
    """Whether they work on GPUs, or nobody else was seen on their CPUs."""
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
    """Whether the ranks need about the same time on a CPU, as far as that was seen."""
    each = [median(row) for row in on_cpu(steps) if row]
    return not each or max(each) < SLOWER * min(each)
