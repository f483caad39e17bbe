"""Reads the launch commands of Kubernetes manifests: PyTorchJob, TrainJob, JobSet, Job, Pod."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace as with_fields

from ddoctor.evidence.launch import Setting
from ddoctor.launch import files, kubernetes_policies, kubernetes_runtimes
from ddoctor.launch.kubernetes_runtimes import Runtime
from ddoctor.launch.words import Command, Word
from ddoctor.launch.yaml_nodes import get, items, line, rows, setting, text, text_rows

OF_RDMA = re.compile(r"rdma|/efa|hca|infiniband|roce|mlnx", re.IGNORECASE)
"""Resources of the device plug-ins of Mellanox, NVIDIA and AWS."""
GPUS = ("nvidia.com/gpu", "amd.com/gpu")
GPU_LABELS = ("nvidia.com/gpu.product", "cloud.google.com/gke-accelerator")
"""Of nodes, by NVIDIA's GPU feature discovery and by Google's Kubernetes."""


def applied(words: Sequence[str]) -> str:
    """The manifest that ``kubectl apply -f FILE`` hands over; empty: it is another command."""
    if (
        len(words) > 1
        and words[0] in ("kubectl", "oc")
        and words[1] in ("apply", "create", "replace")
    ):
        for word, after in itertools.zip_longest(words, words[1:], fillvalue=""):
            option, _, value = word.partition("=")
            if option in ("-f", "--filename"):
                return value or after
    return ""


def commands(path: Path, name: str) -> list[Command]:
    """The commands of all containers in a manifest, in order.

    Raises:
        DoctorError: it cannot be read, is no YAML, or has no container with a command.
    """
    documents = [*files.documents(path, name)]
    found = [
        _command(container, pod, document, name, kubernetes_runtimes.of(document, documents))
        for document in documents
        if not kubernetes_runtimes.is_template(document, documents)
        for container, pod in (*_containers(document, None, set()), *_trainer(document))
    ]
    with_words = [one for one in found if one.words]
    if not with_words:
        raise kubernetes_runtimes.without_command(documents, name)
    return with_words


def _containers(node: Any, pod: Any, seen: set[int]) -> Iterator[tuple[Any, Any]]:
    """Each container with the specification of its pod; what an alias repeats counts once."""
    if id(node) in seen:
        return
    seen.add(id(node))
    for key, value in items(node):
        if key == "containers" and value.id == "sequence":
            for one in value.value:
                yield one, node
        elif value.id == "mapping":
            yield from _containers(value, pod, seen)
        elif value.id == "sequence":
            for one in value.value:
                yield from _containers(one, pod, seen)


def _trainer(document: Any) -> Iterator[tuple[Any, Any]]:
    """What a TrainJob sets for the container of its runtime."""
    trainer = get(get(document, "spec"), "trainer")
    if trainer is not None or kubernetes_runtimes.named(document):
        yield trainer, None


def _command(
    container: Any, pod: Any, document: Any, name: str, runtime: Runtime | None = None
) -> Command:
    own = runtime.container if runtime is not None else None
    parts = [get(container, key) or get(own, key) for key in ("command", "args")]
    words = [word for part in parts for word in _texts(part, name)]
    variables = [
        Setting(name=key, value=text(get(row, "value")), file=name, line=line(row))
        for row in (*rows(get(own, "env")), *rows(get(container, "env")))
        if (key := text(get(row, "name"))) and get(row, "value") is not None
    ]
    of_job = [*_of_job(document, name, runtime)]
    variables += _of_operator(of_job)
    image = setting("elsewhere", get(container, "image") or container or document, name)
    policies = kubernetes_policies.read(document, pod, name)
    settings = [*_of_container(container, pod, name), *of_job, *policies, image]
    if runtime is not None:
        settings += _of_container(own, runtime.pod, name)
    if not any(one.name == "shm" for one in settings) and container is get(
        get(document, "spec"), "trainer"
    ):
        # Its volumes are among what the job overrides.
        settings += [setting("shm", one, name) for one in _mounts(document) if _is_shm(one)]
    return Command(words=tuple(words), variables=tuple(variables), settings=tuple(settings))


def _of_operator(settings: Sequence[Setting]) -> Iterator[Setting]:
    """The options of torchrun that Kubeflow's operators give each pod as variables.

    Source: training-operator, pkg/controller.v1/pytorch/envvar.go; trainer, plugins/torch/torch.go.
    """
    told = {one.name: one for one in settings}
    kind = told.get("kind")
    if kind is not None and kind.value in ("PyTorchJob", "TrainJob"):
        each = told.get("k8s-ranks-per-host", with_fields(kind, value="auto"))
        yield with_fields(each, name="PET_NPROC_PER_NODE")
        yield with_fields(told.get("pods", with_fields(kind, value="1")), name="PET_NNODES")


def _of_container(container: Any, pod: Any, name: str) -> Iterator[Setting]:
    asked = get(container, "resources") or get(container, "resourcesPerNode")
    limits = get(asked, "limits")
    for key, value in items(limits):
        if key in GPUS:
            yield setting("gpus-per-host", value, name)
        elif OF_RDMA.search(key):
            yield setting("rdma", value, name)
        elif "/" in key:
            # A part of a GPU, or another accelerator.
            yield setting("may-grant-gpus", value, name)
        elif key == "memory":
            yield setting("memory-per-host", value, name)
        elif key == "cpu":
            yield setting("cpus-per-host", value, name)
    for key, value in items(get(asked, "requests")):
        if key in GPUS:
            yield setting("gpus-requested", value, name)
    for one in (
        get(asked, "claims"),
        get(pod, "runtimeClassName"),
        get(get(container, "securityContext"), "privileged"),
    ):
        if one is not None:
            yield setting("may-grant-gpus", one, name)
    for key, named in (("hostNetwork", "host-network"), ("hostIPC", "host-ipc")):
        if (value := get(pod, key)) is not None:
            yield setting(named, value, name)
    for key, value in items(get(pod, "nodeSelector")):
        if key in GPU_LABELS:
            yield setting("gpu-model", value, name)
    volumes = {text(get(row, "name")): row for row in rows(get(pod, "volumes"))}
    for row in rows(get(container, "volumeMounts")):
        if _is_shm(row):
            empty = get(volumes.get(text(get(row, "name"))), "emptyDir")
            limit = get(empty, "sizeLimit")
            yield setting("shm", limit if limit is not None else row, name)


def _mounts(node: Any) -> Iterator[Any]:
    for _, value in items(node):
        yield from _mounts(value)
    for one in rows(node):
        yield from ([one] if get(one, "mountPath") is not None else _mounts(one))


def _is_shm(mount: Any) -> bool:
    return text(get(mount, "mountPath")).rstrip("/") == "/dev/shm"


def _of_job(document: Any, name: str, runtime: Runtime | None) -> Iterator[Setting]:
    spec = get(document, "spec")
    policy = runtime.policy if runtime is not None else None
    if (kind := get(document, "kind")) is not None:
        yield setting("kind", kind, name)
    each = get(spec, "nprocPerNode") or get(get(spec, "trainer"), "numProcPerNode")
    each = each or get(get(policy, "torch"), "numProcPerNode")
    if each is not None:
        yield setting("k8s-ranks-per-host", each, name)
    replicas = [
        value
        for _, role in items(get(spec, "pytorchReplicaSpecs"))
        if (value := get(role, "replicas")) is not None
    ]
    nodes = get(get(spec, "trainer"), "numNodes") or get(spec, "parallelism")
    nodes = nodes or get(policy, "numNodes")
    roles = rows(get(spec, "replicatedJobs"))
    if len(roles) == 1:
        # A JobSet of one job, or of one pod in each job.
        jobs, each_job = get(roles[0], "replicas"), get(get(roles[0], "template"), "spec")
        parallel = get(each_job, "parallelism")
        if text(jobs) in ("", "1"):
            nodes = nodes or parallel
        elif text(parallel) in ("", "1"):
            nodes = nodes or jobs
    if replicas:
        total = sum(int(one.value) for one in replicas if text(one).isdigit())
        yield Setting(name="pods", value=str(total), file=name, line=line(replicas[0]))
    elif nodes is not None:
        yield setting("pods", nodes, name)


def _texts(node: Any, name: str) -> Iterator[Word]:
    for one in rows(node):
        known = "$(" not in text(one)
        yield Word(text=text(one), file=name, line=line(one), resolved=known, rows=text_rows(one))
