"""Whether the ranks have their CPUs for themselves. Pure: recorded steps in, a word out."""

from __future__ import annotations

from collections.abc import Sequence

from ddoctor.evidence.steps import Steps
from ddoctor.evidence.training import RankUse

# Ranks on CPUs that others use as well are late by turns because of that, and so is what gloo's
# threads move for them, which is no fault of the job: where a rank waits in the run queue for this
# part of the time, or so many CPUs are taken.
QUEUED, TAKEN = 0.05, 0.5


def have_their_cpus(steps: Steps, use: Sequence[RankUse]) -> bool:
    """Whether they work on GPUs, or nobody else was seen on their CPUs."""
    if all(rank.place.device != "cpu" for rank in steps.ranks):
        return True
    hosts = [host for one in use for host in one.hosts]
    return bool(hosts) and all(
        host.waited is not None
        and host.waited < QUEUED
        and (host.neighbours is None or host.neighbours < TAKEN)
        for host in hosts
    )
