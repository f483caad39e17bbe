"""What each pod of a manifest gets: its number, the values of variables, and GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddoctor.analysis.launch_plan import LaunchPlan
from ddoctor.analysis.mistake import Mistake, shown
from ddoctor.analysis.script_source import shown as line_of
from ddoctor.analysis.slurm_gpus import needs_cuda
from ddoctor.evidence.launch import Launch
from ddoctor.evidence.script import Script
from ddoctor.models import Confidence, Fix, Severity

OF_ONE_TEMPLATE = ("Job", "JobSet", "TrainJob")
"""Kinds whose pods all run the same line."""
INDEX = "JOB_COMPLETION_INDEX"
NUMBER = {"accelerate": "--machine_rank"}
OF_PLACES = ("hosts", "host-rank", "ranks-per-host", "ranks", "endpoint", "main-address")
OF_PODS = (INDEX, "HOSTNAME", "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Variables that Kubernetes and its operators give a pod."""
OF_SHELLS = re.compile(r"\$(\w+|\{\w+\})")


def of_pods(plan: LaunchPlan) -> Iterator[Mistake]:
    """All of them; none: the launch has no manifest."""
    launch = plan.launch
    if launch.get("kind") is None:
        return
    yield from _not_expanded(launch)
    yield from _one_number(launch)
    yield from _without_index(launch)
    yield from _without_limits(launch)


OWN_PODS = ("Job", "JobSet", "PyTorchJob", "Pod", "Deployment", "StatefulSet")
"""Kinds that describe their containers in full; the runtime of a TrainJob may ask for GPUs."""


def without_gpus(launch: Launch, script: Script) -> Iterator[Mistake]:
    """Pods that ask for no GPU, and a script that needs one.

    Source: kubernetes.io/docs/tasks/manage-gpus/scheduling-gpus.
    """
    kind, needs = launch.get("kind"), needs_cuda(script)
    granted = launch.get("gpus-per-host", "gpus-requested", "may-grant-gpus")
    if kind is None or kind.value not in OWN_PODS or needs is None or granted is not None:
        return
    yield Mistake(
        because=f"{line_of(needs.at)} needs a GPU, and the pods ask for none ({kind.at})",
        at=kind,
        fix=Fix(
            summary="ask for one GPU per rank",
            paste="resources:\n  limits:\n    nvidia.com/gpu: 8",
            language="yaml",
        ),
        confidence=Confidence.LIKELY,
        severity=Severity.WARNING,
    )


def _not_expanded(launch: Launch) -> Iterator[Mistake]:
    """A variable as a shell writes it, where no shell runs.

    Source: kubernetes.io/docs/tasks/inject-data-application/define-command-argument-container,
    "Use environment variables to define arguments".
    """
    for name in OF_PLACES if not launch.around else ():
        one = launch.get(name)
        match = OF_SHELLS.search(one.value) if one is not None and one.file else None
        variable = match[1].strip("{}") if match is not None else ""
        # Others are to be replaced before the manifest is applied, as by envsubst.
        own = variable in OF_PODS or launch.get(f"env.{variable}") is not None
        if one is not None and match is not None and own:
            written = f"$({variable})"
            yield Mistake(
                because=f"{shown(name)} is {one.value} ({one.at}), and no shell replaces the "
                f"variable: Kubernetes replaces {written} only",
                at=one,
                fix=Fix(
                    summary="write it for Kubernetes, or start the command by a shell",
                    paste=one.value.replace(match[0], written),
                    language="text",
                ),
                confidence=Confidence.LIKELY,
            )
            return


def _one_number(launch: Launch) -> Iterator[Mistake]:
    """All pods run one line, which gives each the same number.

    Source: torch/distributed/run.py, "--node-rank … when using static rendezvous".
    """
    kind, pods, rank = launch.get("kind"), launch.get("pods"), launch.get("host-rank")
    backend = launch.get("rendezvous")
    static = backend is None or backend.value == "static"
    alike = kind is not None and kind.value in OF_ONE_TEMPLATE and static
    if not alike or pods is None or (pods.number or 1) < 2 or rank is None:
        return
    if rank.number is not None and rank.file == pods.file:
        yield Mistake(
            because=f"all {pods.value} pods ({pods.at}) run this line, and each of them gets the "
            f"number {rank.number} ({rank.at})",
            at=rank,
            fix=Fix(
                summary="give each pod its own number",
                paste=f"{NUMBER.get(launch.launcher, '--node-rank')}=$({INDEX})"
                "  # with completionMode: Indexed",
            ),
        )


def _without_index(launch: Launch) -> Iterator[Mistake]:
    """Source: kubernetes.io/docs/concepts/workloads/controllers/job, "Completion mode"."""
    kind, mode, rank = (launch.get(name) for name in ("kind", "completion-mode", "host-rank"))
    if kind is None or kind.value != "Job" or rank is None or INDEX not in rank.value:
        return
    if mode is None or mode.value != "Indexed":
        said = f"{mode.value} ({mode.at})" if mode is not None else "NonIndexed, the default"
        yield Mistake(
            because=f"host rank is {rank.value} ({rank.at}), and Kubernetes sets that variable "
            f"with completionMode Indexed only: here it is {said}",
            at=rank,
            fix=Fix(
                summary="let Kubernetes number the pods",
                paste="completionMode: Indexed",
                language="yaml",
            ),
            confidence=Confidence.LIKELY,
        )


def _without_limits(launch: Launch) -> Iterator[Mistake]:
    """Kubernetes refuses a request for GPUs without the same limit.

    Source: kubernetes.io/docs/tasks/manage-gpus/scheduling-gpus, "Using device plugins".
    """
    asked = launch.get("gpus-requested")
    if asked is not None and launch.get("gpus-per-host") is None:
        yield Mistake(
            because=f"{asked.value} GPUs are among the requests ({asked.at}) and not among the "
            "limits: Kubernetes refuses such a pod",
            at=asked,
            fix=Fix(
                summary="write them as limits",
                paste=f"limits:\n  nvidia.com/gpu: {asked.value}",
                language="yaml",
            ),
            confidence=Confidence.LIKELY,
            severity=Severity.ERROR,
        )
