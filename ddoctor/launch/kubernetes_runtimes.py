"""The runtimes of Kubeflow's TrainJobs: what a job does not say, its runtime does.

Source: github.com/kubeflow/trainer, docs/proposals/2170-kubeflow-trainer-v2: the job's trainer
overrides command, arguments, nodes, ranks and resources of the container that its runtime has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ddoctor.errors import DoctorError
from ddoctor.launch.yaml_nodes import get, items, rows, text

JOB = "TrainJob"
RUNTIMES = ("ClusterTrainingRuntime", "TrainingRuntime")
STEP = "trainer.kubeflow.org/trainjob-ancestor-step"
TRAINS = ("trainer", "node")
"""The value of that label, and the role of the training in the runtimes of Kubeflow."""


@dataclass(frozen=True)
class Runtime:
    """A runtime of the same manifest."""

    policy: Any
    """Its ``mlPolicy``."""
    pod: Any
    container: Any


def named(document: Any) -> str:
    """The runtime that a TrainJob refers to; empty: it is none."""
    job = text(get(document, "kind")) == JOB
    return text(get(get(get(document, "spec"), "runtimeRef"), "name")) if job else ""


def of(document: Any, documents: Sequence[Any]) -> Runtime | None:
    """The runtime of a TrainJob; None: it is not in this manifest, or has no such container."""
    name = named(document)
    for one in documents if name else ():
        own = text(get(get(one, "metadata"), "name"))
        if text(get(one, "kind")) in RUNTIMES and own == name:
            spec = get(one, "spec")
            pods = [*_pods(get(get(spec, "template"), "spec"))]
            containers = rows(get(pods[0], "containers")) if len(pods) == 1 else []
            if containers:
                return Runtime(get(spec, "mlPolicy"), pods[0], containers[0])
    return None


def is_template(document: Any, documents: Sequence[Any]) -> bool:
    """Whether a document only says how the TrainJobs of the manifest run."""
    own = text(get(get(document, "metadata"), "name"))
    is_one = text(get(document, "kind")) in RUNTIMES
    return is_one and own in {named(one) for one in documents}


def without_command(documents: Sequence[Any], name: str) -> DoctorError:
    """Why no command was found."""
    runtime = next(filter(None, map(named, documents)), "")
    if not runtime:
        return DoctorError(f"{name} has no container with a command: is it a Kubernetes manifest?")
    return DoctorError(
        f"{name} gives no command, and its runtime {runtime} is not in it: append what "
        f"`kubectl get clustertrainingruntime {runtime} -o yaml` prints, after a line with ---"
    )


def _pods(spec: Any) -> Iterator[Any]:
    """The pod of the training, of the jobs of a runtime."""
    jobs = rows(get(spec, "replicatedJobs"))
    trains = [one for one in jobs if _is_training(one)] or jobs[:1] * (len(jobs) == 1)
    for one in trains:
        pod = get(get(get(get(one, "template"), "spec"), "template"), "spec")
        if pod is not None:
            yield pod


def _is_training(job: Any) -> bool:
    labels = dict(items(get(get(get(job, "template"), "metadata"), "labels")))
    step = text(labels.get(STEP))
    return step == TRAINS[0] if step else text(get(job, "name")) in TRAINS
