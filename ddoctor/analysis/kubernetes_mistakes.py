"""What a manifest of Kubernetes gets wrong for ranks that wait for each other."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddoctor.analysis.launch_plan import LaunchPlan
from ddoctor.analysis.meeting_place import meeting
from ddoctor.analysis.mistake import Mistake
from ddoctor.evidence.launch import Launch, Setting
from ddoctor.models import Confidence, Fix, Severity

BY_JOBS = ("Job", "JobSet")
RESTARTS = ("OnFailure", "Never")
RESOLVES = ("ClusterFirstWithHostNet", "None")
"""Policies of a pod that asks the cluster's DNS, or servers that the manifest names."""
NAMES = re.compile(r"[a-z0-9][a-z0-9.-]*", re.IGNORECASE)


def of_kubernetes(plan: LaunchPlan) -> Iterator[Mistake]:
    """All of them; none: the launch has no manifest."""
    if plan.launch.get("kind") is None:
        return
    yield from _refused(plan.launch)
    yield from _without_names(plan)
    yield from _restarted_alone(plan.launch)


def _refused(launch: Launch) -> Iterator[Mistake]:
    """A Job takes no pods that start again whatever happened, which is a pod's default.

    Source: kubernetes.io/docs/concepts/workloads/controllers/job, "Pod Template"; JobSet's webhook
    puts in OnFailure where nothing is given.
    """
    kind, policy = launch.get("kind"), launch.get("restart-policy")
    wrong = policy is not None and policy.value not in RESTARTS
    missing = policy is None and kind is not None and kind.value == "Job"
    if kind is not None and kind.value in BY_JOBS and (wrong or missing):
        given = f"is {policy.value} ({policy.at})" if policy is not None else "is not given"
        yield Mistake(
            because=f"restartPolicy of the pods {given}, and Kubernetes refuses a {kind.value} "
            f"({kind.at}) without one of {', '.join(RESTARTS)}",
            at=policy or kind,
            fix=Fix(
                summary="say it in the specification of the pods",
                paste="restartPolicy: Never",
                language="yaml",
            ),
            # A tool that writes the rest of the manifest may put it in.
            confidence=Confidence.POSSIBLE if missing else Confidence.LIKELY,
            severity=Severity.NOTE if missing else Severity.ERROR,
        )


def _without_names(plan: LaunchPlan) -> Iterator[Mistake]:
    """Pods on the network of their host ask its DNS, which knows no service of the cluster.

    Source: kubernetes.io/docs/concepts/services-networking/dns-pod-service, "Pod's DNS Policy".
    """
    launch, own = plan.launch, plan.launch.get("host-network")
    policy = launch.get("dns-policy")
    if own is None or not own.on or (policy is not None and policy.value in RESOLVES):
        return
    needs = _service(launch)
    if needs:
        yield Mistake(
            because=f"the pods are on the network of their host ({own.at}) with dnsPolicy "
            f"{policy.value if policy is not None else 'ClusterFirst, the default'}: they ask the "
            f"host's DNS, which does not know {needs}",
            at=own,
            fix=Fix(
                summary="let the pods ask the cluster's DNS",
                paste="hostNetwork: true\ndnsPolicy: ClusterFirstWithHostNet",
                language="yaml",
            ),
            confidence=Confidence.LIKELY,
            severity=Severity.WARNING,
        )


def _service(launch: Launch) -> str:
    """The name of a service that the ranks look up; empty: none that is known here."""
    kind, pods = launch.get("kind"), launch.number("pods") or 1
    if kind is not None and kind.value == "PyTorchJob" and pods > 1:
        # training-operator, pkg/controller.v1/pytorch/envvar.go.
        return "the service of the master, which the operator writes into MASTER_ADDR"
    meets, names = meeting(launch), launch.get("service-names")
    if meets is not None and "MASTER_ADDR" in meets.value:
        meets = launch.get("env.MASTER_ADDR")
    return f"{meets.value} ({meets.at})" if meets is not None and _is_inside(meets, names) else ""


def _is_inside(meets: Setting, names: Setting | None) -> bool:
    """Whether it is a name of the cluster: of a service, or of a pod of this manifest."""
    host = meets.value.partition(":")[0]
    labels = host.split(".")
    if not NAMES.fullmatch(host) or host.replace(".", "").isdigit():
        return False
    own = names.value.split(",") if names is not None else []
    return "svc" in labels or any(
        label == one or label.startswith(f"{one}-") for label in labels[:2] for one in own
    )


def _restarted_alone(launch: Launch) -> Iterator[Mistake]:
    """A Job starts a failed pod again by itself, and the others do not know it.

    Source: kubernetes.io/docs/concepts/workloads/controllers/job, "Pod backoff failure policy";
    JobSet restarts all pods once one of its Jobs has failed, which backoffLimit delays.
    """
    kind, pods = launch.get("kind"), launch.get("pods")
    several = pods is not None and (pods.number or 1) > 1
    if kind is None or pods is None or kind.value not in BY_JOBS or not several:
        return
    limit, whole = launch.get("backoff-limit"), launch.get("max-restarts")
    # Most sets leave both to the defaults, and mean neither.
    unsaid = kind.value == "JobSet" and limit is None and whole is None
    if unsaid or (limit is not None and limit.number == 0):
        return
    of_set = f", before maxRestarts ({whole.at}) lets all begin again" if whole is not None else ""
    yield Mistake(
        because=f"the {kind.value} of {pods.value} pods ({pods.at}) starts a failed pod again by "
        f"itself ({'by default 6 times' if limit is None else limit.at}{of_set}), while the others "
        "still wait in their last collective",
        at=limit or pods,
        fix=Fix(
            summary="let the whole set begin again: a JobSet, or no second try"
            if kind.value == "Job"
            else "let the first failure of a pod restart the whole set",
            paste="backoffLimit: 0"
            if kind.value == "Job"
            else "failurePolicy:\n  maxRestarts: 3\n# in the template of each replicated job:\n"
            "backoffLimit: 0",
            language="text",
        ),
        confidence=Confidence.POSSIBLE,
        severity=Severity.NOTE,
    )
