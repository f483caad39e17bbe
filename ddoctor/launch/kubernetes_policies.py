"""What a manifest says on restarts and on the names that its pods look up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ddoctor.evidence.launch import Setting
from ddoctor.launch.yaml_nodes import get, items, line, rows, setting, text


def read(document: Any, pod: Any, name: str) -> Iterator[Setting]:
    """Yield the policies that count for a pod of a document, each by its own name.

    ``backoff-limit`` is that of the Job around the pod, ``max-restarts`` that of a JobSet.
    """
    spec = get(document, "spec")
    job = next((one for one in _jobs(document) if _holds(one, pod)), None)
    limit = get(job or spec, "backoffLimit") or get(get(spec, "runPolicy"), "backoffLimit")
    told = {
        "completion-mode": get(job or spec, "completionMode"),
        "backoff-limit": limit,
        "max-restarts": get(get(spec, "failurePolicy"), "maxRestarts"),
        "restart-policy": get(pod, "restartPolicy"),
        "dns-policy": get(pod, "dnsPolicy"),
    }
    for key, value in told.items():
        if value is not None:
            yield setting(key, value, name)
    names = [text(get(get(document, "metadata"), "name")), text(get(pod, "subdomain"))]
    value = ",".join(filter(None, names))
    if document is not None and value:
        yield Setting(name="service-names", value=value, file=name, line=line(document))


def _jobs(document: Any) -> Iterator[Any]:
    """The specifications of the Jobs of a JobSet."""
    for role in rows(get(get(document, "spec"), "replicatedJobs")):
        yield get(get(role, "template"), "spec")


def _holds(job: Any, pod: Any) -> bool:
    return pod is not None and any(
        get(value, "spec") is pod for key, value in items(job) if key == "template"
    )
