"""Fixes that change the environment of the ranks."""

from __future__ import annotations

import shlex

from ddoctor.evidence.environment import Environment
from ddoctor.evidence.host import Kernel
from ddoctor.models import Fix

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


def unset(environment: Environment, name: str) -> Fix:
    """The fix that unsets a variable, in the shell or in the file that sets it."""
    origin = environment.origin(name)
    if not origin:
        return Fix(
            summary=f"unset {name}",
            paste=f"unset {name}",
            caution=SCRIPTS,
            environment=(name,),
        )
    return Fix(
        summary=f"remove {name} from {origin}",
        paste=f"sed -i '/^{name}=/d' {origin}",
        caution=ADMINISTRATOR if origin.startswith("/etc/") else "",
    )


def rewrite(environment: Environment, name: str, new_name: str, value: str) -> Fix:
    """The fix that gives a variable another name or value."""
    origin = environment.origin(name)
    setting = f"{new_name}={value}"
    if not origin:
        drop = f"unset {name}\n" if new_name != name else ""
        quoted = shlex.quote(value)
        return Fix(
            summary=f"set {setting}",
            paste=f"{drop}export {new_name}={quoted}",
            caution=SCRIPTS,
        )
    old = environment.get(name) or ""
    return Fix(
        summary=f"write {setting} in {origin}",
        paste=f"-{name}={old}\n+{setting}",
        language="diff",
        caution=ADMINISTRATOR if origin.startswith("/etc/") else "",
    )
