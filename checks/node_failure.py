"""The scheduler or the cluster has lost a node of the run.

The node crashed or lost its network; or the scheduler took it back, and it is sound. All ranks on
it are gone, and the scheduler ends the others. Their errors only say that a connection broke.

Symptoms: "DUE TO NODE FAILURE" or "Node failure on NODE" from Slurm; NodeNotReady, Evicted or
Preempted in the events of a pod; "has been marked dead" from Ray.

To fix it, continue from the last checkpoint: without the node if it failed, on any node if the run
was preempted or evicted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ddoctor.analysis import log_events
from ddoctor.evidence.log import Log
from ddoctor.models import Confidence, Finding, Fix

EXPLAINS = ("dead-rank", "first-failure-masked", "network-unreachable", "script-error")


def in_a_log(log: Log) -> Iterator[Finding]:
    events = log.of("node-failure")
    if events:
        hosts = sorted({one.host for one in events if one.host})
        node = hosts[0] if hosts else "NODE"
        of_slurm = f"scontrol update nodename={node} state=drain reason=failed\n" + (
            f"sbatch --exclude={node} …"
        )
        of_kubernetes = f"kubectl cordon {node}; kubectl describe node {node}"
        yield log_events.finding(
            events,
            f"the scheduler has lost {node if hosts else 'a node'}, with all ranks on it",
            Fix(
                summary="take the node out of service, and start again without it",
                paste=of_kubernetes if "kubernetes" in events[0].values else of_slurm,
                caution="resume from the last checkpoint",
            ),
            confidence=Confidence.CERTAIN,
        )


def for_another_job(log: Log) -> Iterator[Finding]:
    events = log.of("preempted")
    if events:
        of_kubernetes = "kubectl get priorityclasses; kubectl get events | grep -i preempt"
        of_slurm = "#SBATCH --requeue --signal=TERM@120  # more than saving takes"
        finding = log_events.finding(
            events,
            "the scheduler took the nodes of the run for a job of higher priority; they are sound",
            Fix(
                summary="save a checkpoint on SIGTERM, and have the job queued again",
                paste=of_kubernetes if "kubernetes" in events[0].values else of_slurm,
                caution="or ask for a partition or class in which jobs are not preempted",
            ),
            confidence=Confidence.CERTAIN,
        )
        yield replace(finding, title="The scheduler preempted the run")


def of_a_pod(log: Log) -> Iterator[Finding]:
    events = log.of("evicted")
    if events:
        resource = next((one.values["resource"] for one in events if "resource" in one.values), "")
        why = f", because the node was low on {resource}" if resource else ""
        finding = log_events.finding(
            events,
            f"Kubernetes took a pod of the run from its node{why}",
            Fix(
                summary="see why, then ask for what the pod uses, or tolerate the taint",
                paste="kubectl describe pod POD; kubectl describe node NODE | grep -A8 Conditions",
                caution="resume from the last checkpoint",
            ),
            confidence=Confidence.CERTAIN,
        )
        yield replace(finding, title="A pod of the run was evicted from its node")


def in_a_list_of_nodes(log: Log) -> Iterator[Finding]:
    if events := log.of("node-not-ready"):
        hosts = ", ".join(sorted({one.host for one in events}))
        yield log_events.finding(
            events,
            f"Kubernetes does not hear from {hosts}: the ranks there are lost, if the run has any",
            Fix(
                summary="see which pods were there, and why the node is not ready",
                paste=f"kubectl get pods -A -o wide | grep {events[0].host}\n"
                f"kubectl describe node {events[0].host}",
            ),
            confidence=Confidence.POSSIBLE,
        )


def in_a_log_of_ray(log: Log) -> Iterator[Finding]:
    events = log.of("ray-node-dead")
    if events:
        yield log_events.finding(
            events,
            "Ray does not hear from the node any more: it is gone, without memory, or too busy to "
            "answer",
            Fix(
                summary="look at what the node and its raylet wrote last",
                paste="ray list nodes --filter state=DEAD --detail\n"
                "tail -n 40 /tmp/ray/session_latest/logs/raylet.out; sudo dmesg -T | tail -n 40",
                caution="on the node itself, if it is still up",
            ),
        )
