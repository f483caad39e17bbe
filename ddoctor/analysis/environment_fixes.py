"""Fixes and commands of several checks: variables, containers, GPUs, connections."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from ddoctor.analysis.variable_values import holds
from ddoctor.evidence.gpus import Gpu, Gpus
from ddoctor.evidence.host import Kernel
from ddoctor.evidence.known_software import KnownVariables, Setting
from ddoctor.evidence.software import Environment
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity

MEASURE = ". Compare a run with it and one without it to measure its cost"

SCRIPTS = "do the same in the script, job file or profile that sets it"
ADMINISTRATOR = "needs the rights of an administrator"


def raise_container_limit(
    kernel: Kernel | None, what: str, *, pod: str, options: str, hint: str = "", most: str
) -> Fix | None:
    """The pod's resource or the engine's command that raises a limit; None: no such container.

    Args:
        pod: the limit as Kubernetes writes it, ``memory: 64Gi``.
        options: the limit as options of ``docker update``.
        hint: an alternative in the pod.
        most: the caution for the pod.
    """
    if kernel is not None and kernel.container == "kubernetes":
        return Fix(
            summary=f"raise the {what} limit of the container{hint}",
            paste=f"resources:\n  limits: {{{pod}}}\n",
            language="yaml",
            caution=most,
        )
    if kernel is not None and kernel.engine:
        return Fix(
            summary=f"raise the {what} limit on the machine that runs the container",
            paste=f"{kernel.engine} update {options} CONTAINER",
        )
    return None


def without(
    gpus: Gpus,
    *left_out: Gpu,
    summary: str = "or run without this GPU",
    caution: str = "start one rank per remaining GPU",
) -> Fix:
    """The fix that excludes these GPUs from a run."""
    kept = ",".join(str(gpu.index) for gpu in gpus.answering if gpu not in left_out)
    return Fix(
        summary=summary,
        paste=f"export CUDA_DEVICE_ORDER=PCI_BUS_ID\nexport CUDA_VISIBLE_DEVICES={kept}",
        caution=caution,
    )


def export(setting: str, summary: str, caution: str = "") -> Fix:
    """The fix that sets a variable, given as NAME=value; a control run can try it."""
    return Fix(summary=summary, paste=f"export {setting}", caution=caution, environment=(setting,))


def choose_interface(name: str) -> Fix:
    """The fix that names the interface for NCCL and gloo: that of a log, or an example."""
    return Fix(
        summary="name the interface that connects the machines, on each of them",
        paste=f"ip -brief address\nexport NCCL_SOCKET_IFNAME={name} GLOO_SOCKET_IFNAME={name}",
        caution="the name may differ between machines: list all, separated by commas",
    )


def connection_test(host: str, port: int | str) -> str:
    """Commands that resolve a host, show the route to it, and open a connection."""
    return (
        f"getent ahosts {host}\n"
        f"ip route get $(getent ahosts {host} | awk 'NR==1{{print $1}}')\n"
        f"timeout 3 bash -c '</dev/tcp/{host}/{port}' && echo open"
    )


def unset(environment: Environment, name: str) -> Fix:
    """The fix that unsets a variable, in the shell or in the file that sets it."""
    if origin := environment.origin(name):
        return Fix(
            summary=f"remove {name} from {origin}",
            paste=f"sed -i '/^{name}=/d' {origin}",
            caution=ADMINISTRATOR if origin.startswith("/etc/") else "",
        )
    return Fix(summary=f"unset {name}", paste=f"unset {name}", caution=SCRIPTS, environment=(name,))


def for_one_run(name: str, value: str) -> Fix:
    """The fix for a variable that the script sets itself."""
    return Fix(
        summary="delete that line, and set it only for a run that fails",
        paste=f"{name}={value} torchrun …",
    )


def rewrite(environment: Environment, name: str, new_name: str, value: str) -> Fix:
    """The fix that gives a variable another name or value."""
    setting = f"{new_name}={value}"
    if origin := environment.origin(name):
        return Fix(
            summary=f"write {setting} in {origin}",
            paste=f"-{name}={environment.get(name) or ''}\n+{setting}",
            language="diff",
            caution=ADMINISTRATOR if origin.startswith("/etc/") else "",
        )
    drop = f"unset {name}\n" if new_name != name else ""
    return Fix(
        summary=f"set {setting}",
        paste=f"{drop}export {new_name}={shlex.quote(value)}",
        caution=SCRIPTS,
    )


def left_set(
    environment: Environment,
    known: KnownVariables,
    setting: Setting,
    confidence: Confidence,
    more: str = "",
) -> Iterator[Finding]:
    """The finding that a variable still has one of the values that should not stay set."""
    value = environment.get(setting.name)
    if value is not None and holds(known, setting.name, value, setting.values):
        yield Finding(
            severity=Severity(setting.severity),
            confidence=confidence,
            because=f"{setting.name}={value} {setting.effect}{more}",
            evidence=(
                Observation(
                    name=setting.name,
                    value=value,
                    expected="not set",
                    source=known.sources[setting.source].text,
                ),
            ),
            fixes=(unset(environment, setting.name),),
        )
