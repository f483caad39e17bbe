"""One sound host with 8 H100s: every section there is, a module per family, list ``SECTIONS``.

``healthy(command)`` is what that command makes of it, and no more.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from ddoctor.evidence.probes import ProbeRuns
from ddoctor.evidence.section import Evidence
from tests.healthy.host import HOST

COMMANDS = ("doctor", "probe", "run", "attach", "plan", "diagnose")


@cache
def healthy(command: str | None = None) -> Evidence:
    """Evidence that no check may find anything in: of one command, or of all of them together."""
    every = tuple(
        section
        for module in iter_modules(__path__)
        for section in import_module(f"{__name__}.{module.name}").SECTIONS
    )
    if command is None:
        return Evidence(every)
    found = Evidence(one for one in every if command in type(one).commands)
    if command == "run":
        # A recorded run says how many ranks there are, and measures nothing.
        return found.with_sections(ProbeRuns(host=HOST, runs=(), world_size=8, backend=""))
    return found
