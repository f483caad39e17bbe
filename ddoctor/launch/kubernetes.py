"""Reads the launch commands of Kubernetes manifests: PyTorchJob, TrainJob, JobSet, Job, Pod."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace as with_fields

from ddoctor.errors import DoctorError
from ddoctor.evidence.launch import Setting
from ddoctor.launch import files
from ddoctor.launch.words import Command, Word

GPUS = ("nvidia.com/gpu", "amd.com/gpu")


def commands(path: Path, name: str) -> list[Command]:
    """The commands of all containers in a manifest, in order.

    Raises:
        DoctorError: it cannot be read, is no YAML, or has no container with a command.
    """
    found = [
        _command(container, pod, document, name)
        for document in files.documents(path, name)
        for container, pod in _containers(document, None, set())
    ]
    with_words = [one for one in found if one.words]
    if not with_words:
        raise DoctorError(f"{name} has no container with a command: is it a Kubernetes manifest?")
    return with_words


def _containers(node: Any, pod: Any, seen: set[int]) -> Iterator[tuple[Any, Any]]:
    """Each container with the specification of its pod; what an alias repeats counts once."""
    if id(node) in seen:
        return
    seen.add(id(node))
    for key, value in _items(node):
        if key == "containers" and value.id == "sequence":
            for one in value.value:
                yield one, node
        elif value.id == "mapping":
            yield from _containers(value, pod, seen)
        elif value.id == "sequence":
            for one in value.value:
                yield from _containers(one, pod, seen)


def _command(container: Any, pod: Any, document: Any, name: str) -> Command:
    words = [*_texts(_get(container, "command"), name), *_texts(_get(container, "args"), name)]
    variables = [
        Setting(name=key, value=_text(_get(row, "value")), file=name, line=_line(row))
        for row in _rows(_get(container, "env"))
        if (key := _text(_get(row, "name"))) and _get(row, "value") is not None
    ]
    of_job = [*_of_job(document, name)]
    variables += _of_operator(of_job)
    settings = [*_of_container(container, pod, name), *of_job]
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
    limits = _get(_get(container, "resources"), "limits")
    for key, value in _items(limits):
        if key in GPUS:
            yield _setting("gpus-per-host", value, name)
        elif key == "memory":
            yield _setting("memory-per-host", value, name)
        elif key == "cpu":
            yield _setting("cpus-per-host", value, name)
    for key, setting in (("hostNetwork", "host-network"), ("hostIPC", "host-ipc")):
        if (value := _get(pod, key)) is not None:
            yield _setting(setting, value, name)
    volumes = {_text(_get(row, "name")): row for row in _rows(_get(pod, "volumes"))}
    for row in _rows(_get(container, "volumeMounts")):
        if _text(_get(row, "mountPath")).rstrip("/") == "/dev/shm":
            empty = _get(volumes.get(_text(_get(row, "name"))), "emptyDir")
            limit = _get(empty, "sizeLimit")
            yield _setting("shm", limit if limit is not None else row, name)


def _of_job(document: Any, name: str) -> Iterator[Setting]:
    spec = _get(document, "spec")
    if (kind := _get(document, "kind")) is not None:
        yield _setting("kind", kind, name)
    each = _get(spec, "nprocPerNode") or _get(_get(spec, "trainer"), "numProcPerNode")
    if each is not None:
        yield _setting("k8s-ranks-per-host", each, name)
    replicas = [
        value
        for _, role in _items(_get(spec, "pytorchReplicaSpecs"))
        if (value := _get(role, "replicas")) is not None
    ]
    nodes = _get(_get(spec, "trainer"), "numNodes") or _get(spec, "parallelism")
    if replicas:
        total = sum(int(one.value) for one in replicas if _text(one).isdigit())
        yield Setting(name="pods", value=str(total), file=name, line=_line(replicas[0]))
    elif nodes is not None:
        yield _setting("pods", nodes, name)
    limit = _get(spec, "backoffLimit") or _get(_get(spec, "runPolicy"), "backoffLimit")
    if limit is not None:
        yield _setting("backoff-limit", limit, name)


def _setting(name: str, node: Any, file: str) -> Setting:
    return Setting(name=name, value=_text(node), file=file, line=_line(node))


def _items(node: Any) -> Iterator[tuple[str, Any]]:
    if node is not None and node.id == "mapping":
        yield from ((key.value, value) for key, value in node.value if key.id == "scalar")


def _get(node: Any, name: str) -> Any:
    return next((value for key, value in _items(node) if key == name), None)


def _rows(node: Any) -> list[Any]:
    return list(node.value) if node is not None and node.id == "sequence" else []


def _text(node: Any) -> str:
    return node.value if node is not None and node.id == "scalar" else ""


def _line(node: Any) -> int:
    line: int = node.start_mark.line + 1
    return line


def _texts(node: Any, name: str) -> Iterator[Word]:
    for one in _rows(node):
        yield Word(text=_text(one), file=name, line=_line(one), resolved="$(" not in _text(one))
