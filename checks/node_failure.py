"""The scheduler or the cluster has lost a node of the run.

The node crashed, lost its network, or was evicted or preempted. All ranks on it are gone, and the
scheduler ends the others. Their errors only say that a connection broke.

Symptoms: "DUE TO NODE FAILURE" or "Node failure on NODE" from Slurm; NodeNotReady, Evicted or
Preempted in the events of a pod.

To fix it, take the node out of service, and continue from the last checkpoint without it.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis import log_events
from ddoctor.evidence.log import Log
from ddoctor.models import Confidence, Finding, Fix

EXPLAINS = ("dead-rank", "first-failure-masked", "network-unreachable", "script-error")


def in_a_log(log: Log) -> Iterator[Finding]:
    events = log.of("node-failure")
    if events:
        hosts = sorted({one.host for one in events if one.host})
        node = hosts[0] if hosts else "NODE"
        yield log_events.finding(
            events,
            f"the scheduler has lost {node if hosts else 'a node'}, with all ranks on it",
            Fix(
                summary="take the node out of service, and start again without it",
                paste=f"scontrol update nodename={node} state=drain reason=failed\n"
                f"sbatch --exclude={node} …",
                caution="resume from the last checkpoint",
            ),
            confidence=Confidence.CERTAIN,
        )
